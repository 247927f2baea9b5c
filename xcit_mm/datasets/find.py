"""Looks at a folder of somebody's data: its format, splits, classes and sizes."""

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import Image

from xcit_mm_runtime.files import write_atomically

from ..errors import UserError
from .bit_depth import find_bit_depth
from .check import Problem
from .check.coco import finite, read_coco
from .check.images import large_images
from .check.labels import ONE_BYTE_MODES
from .check.run import in_threads
from .convert.source import SPLIT_NAMES, images_by_stem, read_text, split_randomly
from .folders import contents_of, label_endings

IMAGE_FOLDERS = ('images', 'image', 'imgs', 'img', 'JPEGImages')
LABEL_FOLDERS = (
    'labels', 'label', 'annotations', 'masks', 'mask', 'labels_png', 'gt', 'SegmentationClass',
)  # fmt: skip
LABEL_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp')
# What mmseg ignores.
IGNORED = 255
# Images whose size is looked at, and labels whose regions are.
SAMPLE = 200
# With fewer labels, nothing tells objects from classes; more than the latter are rarely one region
# each, if they are classes.
FEW_VALUES, MANY_VALUES = 5, 20
FOR_INSTANCES = (
    'a detector with masks tells objects apart. Write their boxes and masks in the format of COCO, '
    'and use xcit-mm init detection.'
)


class Split(NamedTuple):
    """Where one split of a dataset is, relative to its root, or absolute.

    Args:
        ann_file (str): Its annotation file or list of images; '' if it has none.
        images (str): The folder of its images.
        labels (str): The folder of its labels, for segmentation.
        total (int): The number of its images.
    """

    ann_file: str
    images: str
    labels: str
    total: int


@dataclass
class Data:
    """A dataset.

    Args:
        root (Path): Its folder.
        splits (dict[str, Split]): Some of ``train``, ``val`` and ``test``; the first two always.
        classes (list[str]): The names of the classes.
        size (tuple[int, int]): Median width and height of the images.
        example (Path): An image of the validation split.
        masks (bool): Whether every object has a mask, for detection.
        suffix (str): What follows the name of an image in that of its labels, for segmentation.
        void (list[int]): The labels that are ignored, for segmentation.
        unused (list[str]): Classes that are left out since they have no objects, for detection.
        named (bool): Whether the names of the classes are known.
        first (int): The label of the first class, for segmentation.
        assumed (dict[str, str]): What the labels do not say, by the option that says it.
        bit_depth (int, optional): How many bits the values of 16-bit images have, if there are any.
    """

    root: Path
    splits: dict[str, Split]
    classes: list[str]
    size: tuple[int, int]
    example: Path
    masks: bool = False
    suffix: str = ''
    void: list[int] | None = None
    unused: list[str] = field(default_factory=list)
    named: bool = True
    first: int = 0
    assumed: dict[str, str] = field(default_factory=dict)
    bit_depth: int | None = None


def relative_to(path: Path, folder: Path) -> str:
    """A path as configs have it: relative to the data's root if it is in there, else absolute."""
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


# Boxes and masks in COCO's format


def find_coco(
    folder: Path,
    generated: Path,
    classes: list[str] | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    workers: int = 1,
) -> Data | None:
    """Find the COCO files of a folder and their images; None if there are none.

    Args:
        folder (Path): The folder.
        generated (Path): Where converted files are, and where files of a random split go.
        classes (list[str], optional): Classes to use. Defaults to None, all that occur.
        val_fraction (float): The part for validation, if there is no file for it.
        seed (int): The seed of that choice.
        workers (int): Threads that decode 16-bit images.

    Raises:
        UserError: If the files cannot be used.
    """
    places = [generated, folder] if generated.is_dir() else [folder]
    files = next((found for place in places if (found := _coco_files(place))), {})
    if not files:
        return None
    if 'train' not in files:
        whole = files.pop('trainval', None) or files.pop('', None)
        if whole is None:
            raise UserError(
                f'{folder} has COCO files for {", ".join(files)}, but none for training.'
            )
        files['train'] = whole
    contents = {split: _content(path) for split, path in files.items()}
    images = {split: _image_folder(folder, files[split], split, contents[split]) for split in files}
    unwritten: dict[str, dict[str, Any]] = {}
    if not {'val', 'test'} & files.keys():
        content = contents['train']
        for image in content['images']:
            image['file_name'] = (Path(images['train']) / image['file_name']).as_posix()
        parts = split_content(content, val_fraction, seed)
        files = {split: generated / f'{split}.json' for split in parts}
        contents, images = parts, dict.fromkeys(parts, '')
        unwritten = parts
    splits: dict[str, Split] = {
        split: Split(
            relative_to(files[split], folder), images[split], '', len(contents[split]['images'])
        )
        for split in ('train', 'val', 'test')
        if split in contents
    }
    splits.setdefault('val', splits.get('test', splits['train']))
    sizes = [(image['width'], image['height']) for image in contents['train']['images']]
    objects = [a for c in contents.values() for a in c['annotations'] if not a.get('iscrowd')]
    names = _classes(contents['train'], objects, classes, files['train'])
    if not names:
        raise UserError(f'{files["train"]} and its neighbors have no objects of a class.')
    masks = bool(objects) and all(one.get('segmentation') for one in objects)
    shown = 'val' if 'val' in contents else 'test' if 'test' in contents else 'train'
    example = folder / images[shown] / contents[shown]['images'][0]['file_name']
    every = [str(category.get('name')) for category in contents['train']['categories']]
    unused = [] if classes else [name for name in every if name not in names]
    for split, part in unwritten.items():
        write_atomically(files[split], json.dumps(part) + '\n')
    paths = [
        folder / images[split] / image['file_name']
        for split, content in contents.items()
        for image in content['images']
    ]
    return Data(
        folder,
        splits,
        names,
        _median(sizes),
        example,
        masks=masks,
        unused=unused,
        bit_depth=find_bit_depth(paths, workers),
    )


def _coco_files(folder: Path) -> dict[str, Path]:
    """The COCO files below a folder, by split; one that names no split has ''."""
    found: dict[str, list[Path]] = {}
    for path in sorted(p for depth in ('*', '*/*', '*/*/*') for p in folder.glob(f'{depth}.json')):
        content = read_coco(str(path))
        if isinstance(content, Problem) or not content.get('annotations'):
            continue
        words = f'{path.parent.relative_to(folder)} {path.stem}'.lower()
        split = next((s for s in ('trainval', 'train', 'val', 'test') if s in words), '')
        found.setdefault(split, []).append(path)
    chosen = {}
    for split, paths in found.items():
        # COCO's own folder has files of key points, too.
        instances = [path for path in paths if path.name.startswith('instances')] or paths
        if len(instances) > 1:
            names = ', '.join(str(path) for path in instances)
            raise UserError(
                f'There are several annotation files for {split or "one split"}: {names}. Keep one '
                'of them in the folder, and move the others out.'
            )
        chosen[split] = instances[0]
    return chosen


def _content(path: Path) -> dict[str, Any]:
    content = read_coco(str(path))
    if isinstance(content, Problem):
        raise UserError(f'{content}.')
    for image in content['images']:
        if 'file_name' not in image or not finite([image.get('width'), image.get('height')]):
            raise UserError(f'{path}: an image lacks its file_name, width or height: {image}.')
    return content


def _image_folder(folder: Path, path: Path, split: str, content: dict[str, Any]) -> str:
    """The folder, relative to the data's root, in which the names of an annotation file are."""
    names = [image['file_name'] for image in content['images']]
    below = sorted(p for depth in ('*', '*/*') for p in folder.glob(depth) if p.is_dir())
    # Splits may have images of the same names, so folders that are named after this one go first.
    own = [place for place in below if split and split in relative_to(place, folder).lower()]
    places = [*own, folder, path.parent, path.parent.parent, *below]
    found = {place: sum((place / name).is_file() for name in names) for place in places}
    place = max(found, key=lambda one: found[one])
    if not found[place]:
        looked_for = f'it lists {names[0]}' if names else 'it lists none'
        raise UserError(f'The images of {path} are nowhere in {folder}: {looked_for}.')
    prefix = relative_to(place, folder)
    return '' if prefix == '.' else f'{prefix}/'


def split_content(content: dict[str, Any], fraction: float, seed: int) -> dict[str, dict[str, Any]]:
    """Split the content of a COCO file into train and val; see :func:`.split_randomly`."""
    by_name = {image['file_name']: image for image in content['images']}
    parts = {}
    for split, names in zip(('train', 'val'), split_randomly(by_name, fraction, seed), strict=True):
        images = [by_name[name] for name in names]
        ids = {image.get('id') for image in images}
        kept = [one for one in content['annotations'] if one.get('image_id') in ids]
        parts[split] = {**content, 'images': images, 'annotations': kept}
    return {split: part for split, part in parts.items() if part['images']}


def _classes(
    content: dict[str, Any], objects: list[dict], wanted: list[str] | None, path: Path
) -> list[str]:
    """The classes in the file's order, in which mmdet numbers them; without unused ones."""
    used = {one.get('category_id') for one in objects}
    names = [str(category.get('name')) for category in content['categories']]
    if wanted is None:
        return [str(c.get('name')) for c in content['categories'] if c.get('id') in used]
    if unknown := [name for name in wanted if name not in names]:
        raise UserError(f'{path} has no class {unknown[0]}; its classes are {", ".join(names)}.')
    return [name for name in names if name in wanted]


def _median(sizes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    widths, heights = zip(*sizes, strict=True)
    return int(median(widths)), int(median(heights))


# Labels of segmentation


def find_labels(
    folder: Path,
    generated: Path,
    classes: list[str] | None = None,
    void: list[int] | None = None,
    first: int | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    workers: int = 1,
) -> Data | None:
    """Find the images and label images of a folder; None if there are none.

    Args:
        folder (Path): The folder.
        generated (Path): Where the lists of a random split go.
        classes (list[str], optional): The names of the classes. Defaults to None, those in
            ``classes.txt``.
        void (list[int], optional): Labels to ignore, next to 255. Defaults to None.
        first (int, optional): The label of the first class, 0 or 1. Defaults to None, 0 unless no
            label is 0.
        val_fraction (float): The part for validation, if there are no splits.
        seed (int): The seed of that choice.
        workers (int): Threads that decode labels.

    Raises:
        UserError: If the labels cannot be used.
    """
    pairs = dict(_label_folders(folder))
    if 'train' in pairs and len(pairs) > 1:
        pairs.pop('', None)
    elif '' not in pairs and 'train' in pairs:
        pairs = {'': pairs['train']}
    elif '' not in pairs:
        return None
    suffix = _label_suffix(*next(iter(pairs.values())))
    splits, labels, lists = {}, [], {}
    images: list[Path] = []
    for split, (image_folder, label_folder) in pairs.items():
        by_stem = images_by_stem(image_folder)
        images += itertools.chain(*by_stem.values())
        stems = sorted(by_stem)
        paths = [label_folder / f'{stem}{suffix}' for stem in stems]
        labels += [path for path in paths if path.is_file()]
        places = relative_to(image_folder, folder), relative_to(label_folder, folder)
        if split:
            splits[split] = Split('', *places, len(stems))
            continue
        parts = split_randomly(stems, val_fraction, seed)
        for name, part in zip(('train', 'val'), parts, strict=True):
            if not part:
                continue
            path = generated / f'{name}.txt'
            lists[path] = '\n'.join(part) + '\n'
            splits[name] = Split(relative_to(path, folder), *places, len(part))
    splits.setdefault('val', splits.get('test', splits['train']))
    values = LabelValues(labels, workers)
    ignored = sorted({IGNORED, *(void or ())})
    given = _given_names(folder, classes)
    if given is None:
        _check_instances(labels, values, ignored, workers)
    start = _first_class(values, ignored, given) if first is None else first
    names = _label_names(given, values, ignored, start)
    assumed = _assumed(values, len(names), start, first, void) if given is None else {}
    for path, text in lists.items():
        write_atomically(path, text)
    image_folder = folder / splits['train'].images
    example = next(iter(images_by_stem(folder / splits['val'].images).values()))[0]
    return Data(
        folder,
        splits,
        names,
        _image_size(image_folder),
        example,
        suffix=suffix,
        void=ignored,
        named=given is not None,
        first=start,
        assumed=assumed,
        bit_depth=find_bit_depth(images, workers),
    )


def _label_folders(folder: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """The folders of images and labels of each split; '' is what has no split."""
    for name, split in {**SPLIT_NAMES, '': ''}.items():
        choices = [(folder / name, folder / f'{name}annot')] if name else []
        for images in IMAGE_FOLDERS:
            for labels in LABEL_FOLDERS:
                choices.append((folder / images / name, folder / labels / name))
                choices.append((folder / name / images, folder / name / labels))
        for pair in choices:
            if all(map(Path.is_dir, pair)) and images_by_stem(pair[0]) and _label_files(pair[1]):
                yield split, pair
                break


def _label_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in LABEL_SUFFIXES]


def _label_suffix(images: Path, labels: Path) -> str:
    """What follows the name of an image in that of its labels: ``.png``, ``_mask.png``..."""
    names = [path.name for path in _label_files(labels)]
    stems = list(images_by_stem(images))
    endings = label_endings(stems, names)
    if not endings:
        raise UserError(
            f'The labels in {labels} do not have the names of the images in {images}: '
            f'{names[0]} and {stems[0]}, for instance.'
        )
    return endings[0]


class LabelValues(dict[int, tuple[int, int]]):
    """For each label that occurs, the number of its pixels and of the files that have it.

    Args:
        paths (list[Path]): The label images.
        workers (int): Threads that decode them.

    Raises:
        UserError: If labels are colors.
    """

    def __init__(self, paths: list[Path], workers: int) -> None:
        counts = np.zeros((2, IGNORED + 1), np.int64)
        with large_images():
            for found in in_threads([functools.partial(_values, path) for path in paths], workers):
                counts += found, found > 0
        super().__init__({int(v): (*counts[:, v].tolist(),) for v in np.flatnonzero(counts[0])})
        self.files = len(paths)

    def describe(self, value: int) -> str:
        """How frequent a label is, in words."""
        pixels, files = self[value]
        share = 100 * pixels / sum(pixels for pixels, _ in self.values())
        return f'{share:.1f} % of the pixels, in {files} of {self.files} files'


def _values(path: Path) -> np.ndarray:
    return np.bincount(_pixels(path).ravel(), minlength=IGNORED + 1)


def _pixels(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # a damaged file can raise anything; the check reports it
        raise UserError(f'{path} cannot be read: {error}.') from None
    if mode not in ONE_BYTE_MODES and not mode.startswith('I'):
        raise UserError(
            f'{path} has colors (mode {mode}), not one number per pixel. Labels are images with '
            'one channel whose values are the classes: 0, 1, 2 and so on.'
        )
    pixels = pixels.astype(np.int64)
    if pixels.min() < 0 or pixels.max() > IGNORED:
        raise UserError(
            f'{path} has labels up to {pixels.max()}; the largest possible is {IGNORED}. If labels '
            f'number objects, not classes: {FOR_INSTANCES}'
        )
    return pixels


def _check_instances(
    paths: list[Path], values: LabelValues, ignored: list[int], workers: int
) -> None:
    """Raise if labels without names seem to number objects, each of which is one region."""
    if len(values) < FEW_VALUES:
        return
    sample = paths[:: max(1, len(paths) // SAMPLE)]
    jobs = [functools.partial(_count_regions, path, {0, *ignored}) for path in sample]
    with large_images():
        files = [regions for regions in in_threads(jobs, workers) if regions]
    if not looks_like_instances(files):
        return
    counts = [count for regions in files for count in regions.values()]
    numbers = sorted(len(regions) for regions in files)
    raise UserError(
        f'The labels seem to number objects, not classes: files have {numbers[0]} to {numbers[-1]} '
        f'labels next to 0, and {counts.count(1) / len(counts):.0%} of these are one connected '
        f'region. If so: {FOR_INSTANCES} If they are classes after all, name them in the order of '
        'their numbers: --classes A B C, or classes.txt in the folder.'
    )


def _count_regions(path: Path, left_out: set[int]) -> dict[int, int]:
    """The number of connected regions of each label of a file."""
    pixels = _pixels(path)
    present = set(np.unique(pixels).tolist()) - left_out
    return {v: cv2.connectedComponents((pixels == v).astype(np.uint8))[0] - 1 for v in present}


def looks_like_instances(files: list[dict[int, int]]) -> bool:
    """Whether labels number objects: nearly all are one region, and each file has other ones.

    Labels of few classes may be like this by chance. So objects must also be numbered from 1
    without gaps in most files, or there must be many labels. Objects behind others have several
    regions: on COCO, one in eight.

    Args:
        files (list[dict[int, int]]): The number of regions of each label, by file.
    """
    counts = [count for regions in files for count in regions.values()]
    labels = {label for regions in files for label in regions}
    if len(labels) < FEW_VALUES:
        return False
    if Counter(map(frozenset, files)).most_common(1)[0][1] > len(files) / 2:
        return False
    numbered = sum(regions.keys() == set(range(1, len(regions) + 1)) for regions in files)
    single = counts.count(1) / len(counts)
    if numbered >= 0.8 * len(files):
        return single >= 0.75
    return len(labels) >= MANY_VALUES and single >= 0.9


def _given_names(folder: Path, classes: list[str] | None) -> list[str] | None:
    """The names of the classes as given, or in ``classes.txt``; None if they are not known."""
    if classes is not None or not (folder / 'classes.txt').is_file():
        return classes
    lines = read_text(folder / 'classes.txt').splitlines()
    return [line.strip() for line in lines if line.strip()]


def _first_class(values: LabelValues, ignored: list[int], names: list[str] | None) -> int:
    """1 if no label is 0, unless there are names enough for a class 0 that does not occur."""
    used = [value for value in values if value not in ignored]
    return int(0 not in values and not (names and used and len(names) > max(used)))


def _assumed(
    values: LabelValues, count: int, start: int, first: int | None, void: list[int] | None
) -> dict[str, str]:
    """What is assumed of labels whose classes have no names, by the option that says otherwise."""
    assumed = {}
    if first is None and start:
        assumed['--classes-from 0'] = 'classes start at 1, since no label is 0'
    elif first is None:
        assumed['--classes-from 1'] = f'0 is the first class, not unlabeled: {values.describe(0)}'
    last = start + count - 1
    # Void is in most images, and often has the highest number.
    if not void and IGNORED not in values and count > 2 and 2 * values[last][1] >= values.files:
        assumed[f'--void {last}'] = f'{last} is a class, not void: {values.describe(last)}'
    return assumed


def _label_names(
    classes: list[str] | None, values: LabelValues, ignored: list[int], first: int
) -> list[str]:
    """The names of the classes, made up if they are not known."""
    if values.keys() == {0, IGNORED} and not first:
        raise UserError(
            'The labels are 0 and 255 only, as in black-and-white masks. Here 255 means that a '
            'pixel is ignored, so only one class is left. Write 1 instead of 255 into the labels.'
        )
    used = [value for value in values if value not in ignored and value >= first]
    if not used:
        raise UserError(f'All labels are ignored ones: {", ".join(map(str, sorted(values)))}.')
    count = max(used) + 1 - first
    if between := [value for value in ignored if first <= value < first + count]:
        zero = ' If 0 means unlabeled, use --classes-from 1.' if 0 in between else ''
        raise UserError(
            f'Label {between[0]} cannot be ignored: classes are numbered without gaps, and there '
            f'are labels above it, up to {max(used)}.{zero}'
        )
    if max(count, len(classes or ())) < 2:
        raise UserError(
            f'The labels have one class only, {first}, next to what is ignored: there is nothing '
            'to tell apart. Pixels that are not of this class need a label of their own.'
        )
    if classes is None:
        return [f'class_{value}' for value in range(first, count + first)]
    if len(classes) < count:
        extra = sorted(value for value in used if value >= first + len(classes))
        raise UserError(
            f'There are {len(classes)} names of classes, for the labels {first} to '
            f'{first + len(classes) - 1}, but there are others: {", ".join(map(str, extra))}. '
            f'Name these classes too, or ignore them: --void {" ".join(map(str, extra))}.'
        )
    return classes


def _image_size(folder: Path) -> tuple[int, int]:
    paths = [paths[0] for paths in images_by_stem(folder).values()]
    sizes = []
    for path in paths[:: max(1, len(paths) // SAMPLE)]:
        try:
            with Image.open(path) as image:
                sizes.append(image.size)
        except Exception:  # a damaged file can raise anything; the check reports it
            continue
    if not sizes:
        raise UserError(f'None of the images in {folder} can be read.')
    return _median(sizes)


def nothing_found(folder: Path, task: str) -> str:
    """What was looked for in a folder without usable data, and what is there."""
    looked_for = {
        'detection': 'annotations in the formats of COCO (JSON), Pascal VOC (XML) and YOLO (text)',
        'segmentation': 'images in images/ or images/train/, with labels as PNG files of the same '
        'names in labels/, annotations/ or masks/',
    }[task]
    return (
        f'{folder} has nothing to train on. Looked for {looked_for}. Found {contents_of(folder)}.'
    )
