"""Spoils one file of a small dataset, in every way that images, annotations or labels go bad."""

import functools
import json
import math

import cv2
import numpy as np
from PIL import Image

HUGE = 10_000  # 100 megapixels


def _picture(path):
    return cv2.imread(str(path))


def _save(path, array):
    path.write_bytes(cv2.imencode('.png', array)[1].tobytes())


@functools.cache
def _one_color(height, width):
    """A PNG of labels, or of a gray image."""
    return cv2.imencode('.png', np.ones((height, width), np.uint8))[1].tobytes()


def _convert(mode, file_format):
    def spoil(path):
        with Image.open(path) as image:
            converted = image.convert(mode)
        converted.save(path, file_format)

    return spoil


def _truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _turn(path):
    with Image.open(path) as image:
        image.load()
    exif = Image.Exif()
    exif[0x112] = 6
    wide = image.resize((image.width + 16, image.height))
    wide.save(path, 'JPEG', exif=exif)


# name -> what spoils an image, the problems that the check must find, whether a run stops
IMAGES = {
    'missing': (lambda path: path.unlink(), {'image: missing'}, True),
    'empty': (lambda path: path.write_bytes(b''), {'image: empty'}, True),
    'truncated': (_truncate, {'image: truncated'}, True),
    'unreadable': (lambda path: path.write_bytes(b'no image'), {'image: unreadable'}, True),
    '1x1': (lambda path: _save(path, np.zeros((1, 1, 3), np.uint8)), {'image: tiny'}, False),
    '16 bit': (
        lambda path: _save(path, _picture(path).astype(np.uint16) * 257), {'image: 16 bit'}, False,
    ),
    '16 bit gray': (
        lambda path: _save(path, _picture(path)[..., 0].astype(np.uint16) * 257),
        {'image: 16 bit', 'image: gray'}, False,
    ),
    'CMYK': (_convert('CMYK', 'JPEG'), {'image: CMYK'}, False),
    'gray': (_convert('L', 'JPEG'), {'image: gray'}, False),
    'alpha': (_convert('RGBA', 'PNG'), {'image: alpha'}, False),
    '100 megapixels': (
        lambda path: path.write_bytes(_one_color(HUGE, HUGE)),
        {'image: huge', 'image: gray'}, False,
    ),
}  # fmt: skip


def _change(**values):
    return lambda content: content['annotations'][0].update(values)


def _twin(part):
    return lambda content: content[part].append(dict(content[part][0]))


def _polygon(content):
    x, y, w, _ = content['annotations'][0]['bbox']
    polygon = [x, y, x + w, y, x + w, math.nan]
    content['annotations'][0]['segmentation'] = [polygon]


# name -> what spoils COCO annotations, the problem that the check must find, whether a run stops
ANNOTATIONS = {
    'outside': (_change(bbox=[9000, 5, 20, 20]), 'box outside', False),
    'before the border': (_change(bbox=[-90, -90, 20, 20]), 'box outside', False),
    'reaches outside': (_change(bbox=[-9, 5, 9000, 20]), 'box reaches outside', False),
    'no width': (_change(bbox=[5, 5, 0, 20]), 'empty box', False),
    'no area': (_change(area=0), 'empty box', False),
    'unknown category': (_change(category_id=999), 'unknown category', False),
    'unknown image': (_change(image_id=999_999), 'unknown image', False),
    'empty polygon': (_change(segmentation=[[]]), 'empty polygon', False),
    'two points': (_change(segmentation=[[1, 1, 2, 2]]), 'empty polygon', False),
    'no mask': (_change(segmentation=[]), 'no mask', True),
    'flat polygon': (_change(segmentation=[1, 1, 9, 9, 1, 9]), 'not COCO', True),
    'NaN box': (_change(bbox=[math.nan, 5, 20, 20]), 'not a number', True),
    'infinite box': (_change(bbox=[5, 5, math.inf, 20]), 'not a number', True),
    'NaN polygon': (_polygon, 'not a number', True),
    'text for a number': (_change(bbox=['5', 5, 20, 20]), 'not a number', True),
    'two annotations': (_twin('annotations'), 'duplicate id', True),
    'two images': (_twin('images'), 'duplicate id', True),
    'no box': (lambda content: content['annotations'][0].pop('bbox'), 'not COCO', True),
    'no size': (lambda content: content['images'][0].pop('width'), 'not COCO', True),
    'no category': (lambda content: content['categories'].pop(), 'class missing', True),
}  # fmt: skip


def _value(value, dtype=np.uint8):
    def spoil(path):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype(dtype)
        labels[3:9, 3:9] = value
        _save(path, labels)

    return spoil


# name -> what spoils a label PNG, the problem that the check must find; a run always stops
LABELS = {
    'missing': (lambda path: path.unlink(), 'missing'),
    'empty': (lambda path: path.write_bytes(b''), 'unreadable'),
    'truncated': (_truncate, 'unreadable'),
    'unreadable': (lambda path: path.write_bytes(b'no image'), 'unreadable'),
    'other size': (lambda path: _save(path, np.ones((32, 48), np.uint8)), 'other size'),
    'out of range': (_value(200), 'out of range'),
    '16 bits': (_value(300, np.uint16), 'out of range'),
    'colors': (lambda path: _save(path, np.ones((*_picture(path).shape[:2], 3))), 'colors'),
}


class BadData:
    """A small dataset with one bad file, the first of its split.

    Args:
        root (Path): A dataset as in ``small_data``; changed.
        split (str): ``train`` or ``val``.
    """

    def __init__(self, root, split):
        long = {'train': 'training', 'val': 'validation'}[split]
        self.annotations = root / 'coco' / 'annotations' / f'instances_{split}2017.json'
        self.content = json.loads(self.annotations.read_text())
        first = self.content['images'][0]
        # The first annotation is an object of the first image with a polygon.
        self.content['annotations'].sort(key=lambda a: (a['image_id'] != first['id'], a['iscrowd']))
        self.coco_image = root / 'coco' / f'{split}2017' / first['file_name']
        self.ade_image = sorted((root / 'ade' / 'images' / long).glob('*.jpg'))[0]
        self.label = root / 'ade' / 'annotations' / long / f'{self.ade_image.stem}.png'
        # Images that are listed in a file can be missing.
        names = sorted(path.stem for path in self.ade_image.parent.iterdir())
        (root / 'ade' / f'{split}.txt').write_text('\n'.join(names))

    def spoil_image(self, spoil):
        """Spoil an image in both layouts, and give annotations and labels its new size."""
        for path in (self.coco_image, self.ade_image):
            spoil(path)
        picture = _picture(self.coco_image) if self.coco_image.is_file() else None
        if picture is not None and picture.shape[:2] != _picture(self.label).shape[:2]:
            height, width = picture.shape[:2]
            self.content['images'][0].update(width=width, height=height)
            first, *others = self.content['annotations']
            first.update(bbox=[0, 0, 1, 1], area=1, segmentation=[[0, 0, 1, 0, 1, 1]])
            others = [a for a in others if a['image_id'] != first['image_id']]
            self.content['annotations'] = [first, *others]
            self.annotations.write_text(json.dumps(self.content))
            self.label.write_bytes(_one_color(height, width))

    def turn_image(self):
        """Rotate an image by its EXIF entry, but not its annotations and labels."""
        for path in (self.coco_image, self.ade_image):
            _turn(path)

    def spoil_annotations(self, spoil):
        spoil(self.content)
        self.annotations.write_text(json.dumps(self.content))
