"""A table of all ways in which one file of a dataset goes bad, and what is found and done then."""

import functools
import json
import math
from collections import namedtuple

import cv2
import numpy as np
from PIL import Image

HUGE = 10_000  # 100 megapixels


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
        self.files = self.coco_image, self.ade_image, self.label, self.annotations
        self.settings = {}  # of the dataset in the config

    def spoil_image(self, spoil):
        """Spoil an image in both layouts, and give annotations and labels its new size."""
        for path in (self.coco_image, self.ade_image):
            spoil(path)
        picture = cv2.imread(str(self.coco_image)) if self.coco_image.is_file() else None
        if picture is not None and picture.shape[:2] != cv2.imread(str(self.label)).shape[:2]:
            height, width = picture.shape[:2]
            self.content['images'][0].update(width=width, height=height)
            first, *others = self.content['annotations']
            first.update(bbox=[0, 0, 1, 1], area=1, segmentation=[[0, 0, 1, 0, 1, 1]])
            others = [a for a in others if a['image_id'] != first['image_id']]
            self.content['annotations'] = [first, *others]
            self.annotations.write_text(json.dumps(self.content))
            self.label.write_bytes(_one_color(height, width))

    def spoil_annotations(self, spoil):
        spoil(self.content)
        self.annotations.write_text(json.dumps(self.content))

    def list_images(self, names):
        """Let the config read the images of a list, which can be missing."""
        path = self.label.parents[2] / 'list.txt'
        path.write_text('\n'.join(names))
        self.settings['ann_file'] = path.name


# task: det or seg. spoil: changes a BadData. kinds: the problems that are found. stops: whether
# a run stops, with a message that names the file. says: a part of the report and of that message.
# splits: where this is bad.
Case = namedtuple('Case', 'task spoil kinds stops says splits', defaults=('', ('train', 'val')))


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


def _to_16_bit(path, channels=slice(None)):
    _save(path, cv2.imread(str(path))[..., channels].astype(np.uint16) * 257)


def _write(content):
    return lambda path: path.write_bytes(content)


def _truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _miss_listed(bad):
    bad.list_images(sorted(path.stem for path in bad.ade_image.parent.iterdir()))
    bad.ade_image.unlink()


def _turn(bad):
    """Rotate an image by its EXIF entry, but not its annotations and labels."""
    for path in (bad.coco_image, bad.ade_image):
        with Image.open(path) as image:
            image.load()
        exif = Image.Exif()
        exif[0x112] = 6
        image.resize((image.width + 16, image.height)).save(path, 'JPEG', exif=exif)


# name -> what spoils an image, the problems that the check finds, whether a run stops
IMAGES = {
    'missing': (lambda path: path.unlink(), {'missing'}, True),
    'empty': (_write(b''), {'empty'}, True),
    'truncated': (_truncate, {'truncated'}, True),
    'unreadable': (_write(b'no image'), {'unreadable'}, True),
    '1x1': (lambda path: _save(path, np.zeros((1, 1, 3), np.uint8)), {'tiny'}, False),
    '16 bit': (_to_16_bit, {'16 bit'}, False),
    '16 bit gray': (lambda path: _to_16_bit(path, 0), {'16 bit', 'gray'}, False),
    'CMYK': (_convert('CMYK', 'JPEG'), {'CMYK'}, False),
    'gray': (_convert('L', 'JPEG'), {'gray'}, False),
    'alpha': (_convert('RGBA', 'PNG'), {'alpha'}, False),
    '100 megapixels': (
        lambda path: _write(_one_color(HUGE, HUGE))(path),
        {'huge', 'gray'},
        False,
    ),
}
CASES = {
    f'{task} image {name}': Case(
        task, lambda bad, s=spoil: bad.spoil_image(s), {f'image: {kind}' for kind in kinds}, stops
    )
    for task in ('det', 'seg')
    for name, (spoil, kinds, stops) in IMAGES.items()
}
CASES |= {
    'seg image missing': Case('seg', _miss_listed, {'image: missing'}, True),
    # mmseg drops the dimensions of labels that are one pixel high or wide.
    'seg image 1x1': CASES['seg image 1x1']._replace(
        kinds={'image: tiny', 'label: unreadable'}, stops=True
    ),
    'det image turned': Case('det', _turn, {'image: rotated by EXIF', 'image: other size'}, False),
    'seg image turned': Case('seg', _turn, {'image: rotated by EXIF', 'label: other size'}, True),
}


def _change(**values):
    return lambda content: content['annotations'][0].update(values)


def _twin(part):
    return lambda content: content[part].append(dict(content[part][0]))


def _same_name(content):
    content['categories'].append({**content['categories'][0], 'id': 99})


def _polygon(content):
    x, y, w, _ = content['annotations'][0]['bbox']
    content['annotations'][0]['segmentation'] = [[x, y, x + w, y, x + w, math.nan]]


# name -> what spoils COCO annotations, the problem that the check finds, whether a run stops
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
    'two categories': (_same_name, 'duplicate name', True),
    'other size': (
        _change(segmentation=dict(size=[5, 5], counts='i0')),
        'mask of another size',
        True,
    ),
    'no box': (lambda content: content['annotations'][0].pop('bbox'), 'not COCO', True),
    'no size': (lambda content: content['images'][0].pop('width'), 'not COCO', True),
    'no category': (lambda content: content['categories'].pop(), 'class missing', True),
}
CASES |= {
    f'annotation {name}': Case(
        'det', lambda bad, s=spoil: bad.spoil_annotations(s), {f'annotations: {kind}'}, stops
    )
    for name, (spoil, kind, stops) in ANNOTATIONS.items()
}
NO_COCO = {'annotations: not COCO'}
CASES |= {
    f'file {text}': Case(
        'det', lambda bad, t=text: bad.annotations.write_text(t), NO_COCO, True, '', ('train',)
    )
    for text in ('', '[]', '{"images": 3}', '{"images": [{"id": []}]')
}


def _value(value, dtype=np.uint8):
    def spoil(path):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype(dtype)
        labels[3:9, 3:9] = value
        _save(path, labels)

    return spoil


# name -> what spoils a label PNG, the problem that the check finds; a run always stops
LABELS = {
    'missing': (lambda path: path.unlink(), 'missing'),
    'empty': (_write(b''), 'unreadable'),
    'truncated': (_truncate, 'unreadable'),
    'unreadable': (_write(b'no image'), 'unreadable'),
    'other size': (lambda path: _save(path, np.ones((32, 48), np.uint8)), 'other size'),
    'out of range': (_value(200), 'out of range'),
    '16 bits': (_value(300, np.uint16), 'out of range'),
    'colors': (_convert('RGB', 'PNG'), 'colors'),
}
CASES |= {
    f'label {name}': Case('seg', lambda bad, s=spoil: s(bad.label), {f'label: {kind}'}, True)
    for name, (spoil, kind) in LABELS.items()
}


def _rename_images(bad):
    for path in bad.ade_image.parent.iterdir():
        path.rename(path.with_suffix('.JPG'))


def _empty_content(*parts):
    return lambda bad: bad.spoil_annotations(lambda c: c.update({part: [] for part in parts}))


def _filter(**settings):
    return lambda bad: bad.settings.update(filter_cfg=settings)


EMPTY = {'dataset: empty'}
NO_JPG = 'images/training: no file ends in .jpg; the folder has 8 files with .JPG. Set img_suffix'
LEFT_OUT = 'leaves out all 8 images by '
DATASETS = {
    'orphan': ('seg', lambda bad: bad.ade_image.unlink(), {'label: without image'}, False),
    'other suffix': ('seg', _rename_images, EMPTY, True, NO_JPG, ('train',)),
    'empty list': ('seg', lambda bad: bad.list_images([]), EMPTY, True, 'txt: it lists no images'),
    'no images': (
        'det', _empty_content('images', 'annotations'), EMPTY, True, 'json: it lists no images',
    ),
    'no objects': (
        'det', lambda bad: (_empty_content('annotations')(bad), _filter(filter_empty_gt=True)(bad)),
        EMPTY, True, f'{LEFT_OUT}filter_empty_gt=True', ('train',),
    ),
    'small images': (
        'det', _filter(min_size=500), EMPTY, True, f'{LEFT_OUT}min_size=500', ('train',),
    ),
}  # fmt: skip
CASES |= {name: Case(*row) for name, row in DATASETS.items()}
