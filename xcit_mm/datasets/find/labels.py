"""Finds label images of segmentation, and what their numbers mean."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from xcit_mm_runtime.files import write_atomically

from ...errors import UserError
from ..folders import (
    SPLIT_NAMES,
    folders_named,
    images_by_stem,
    label_endings,
    read_lines,
    relative_to,
    split_randomly,
)
from ..images import map_in_threads
from .data import SAMPLE, FoundData, Split

IMAGE_FOLDERS = ('images', 'image', 'imgs', 'img', 'jpegimages', 'pngimages')
LABEL_FOLDERS = (
    'labels', 'label', 'annotations', 'masks', 'mask', 'labels_png', 'gt',
    'segmentationclass', 'pedmasks',
)  # fmt: skip
LABEL_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp')
# Pillow's modes with one number per pixel.
LABEL_MODES = ('1', 'L', 'P', 'I', 'I;16', 'I;16B', 'I;16L', 'I;16N')
# Ignored by mmseg.
IGNORED = 255
# With fewer labels, nothing tells objects from classes; more than the latter are rarely one region
# each, if they are classes.
FEW_VALUES, MANY_VALUES = 5, 20
# Labels that differ by this much or more are gray levels, which people can tell apart.
GRAY_STEP = 10
FOR_INSTANCES = (
    'a detector with masks tells objects apart, and xcit-mm init detection takes these labels as '
    'they are.'
)


def find_labels(
    folder: Path,
    generated: Path,
    classes: list[str] | None = None,
    void: list[int] | None = None,
    first: int | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
) -> FoundData | None:
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

    Raises:
        UserError: If the labels cannot be used.
    """
    pairs = find_label_folders(folder)
    if not pairs:
        return None
    suffix = find_label_suffix(*next(iter(pairs.values())))
    splits: dict[str, Split] = {}
    images: dict[str, list[Path]] = {}
    labels: list[Path] = []
    lists: dict[Path, str] = {}
    for split, (image_folder, label_folder) in pairs.items():
        by_stem = images_by_stem(image_folder)
        labels += (label_folder / f'{stem}{suffix}' for stem in by_stem)
        places = relative_to(image_folder, folder), relative_to(label_folder, folder)
        parts = {split: list(by_stem)} if split else split_randomly(by_stem, val_fraction, seed)
        for name, stems in parts.items():
            path = generated / f'{name}.txt'
            if not split:
                lists[path] = '\n'.join(stems) + '\n'
            listed = '' if split else relative_to(path, folder)
            splits[name] = Split(listed, *places, len(stems))
            images[name] = [image for stem in stems for image in by_stem[stem]]
    ignored = sorted({IGNORED, *(void or ())})
    if classes is None and (folder / 'classes.txt').is_file():
        classes = list(read_lines(folder / 'classes.txt').values())
    scan = LabelScan([path for path in labels if path.is_file()])
    if classes is None:
        scan.check_instances(ignored)
    values = _gray_levels(scan, void or [], classes) if first is None else []
    start, names = 0, classes or [f'class_{value}' for value in values]
    if values:
        ignored = [value for value in ignored if value not in values]
    else:
        start = _first_class(scan, ignored, classes) if first is None else first
        names = _class_names(scan, ignored, classes, start)
    numbers = values or range(start, start + len(names))
    pixels = np.array([scan.pixels.get(number, 0) for number in numbers])
    data = FoundData.describe(
        folder,
        splits,
        images,
        names,
        shares=(pixels / pixels.sum()).tolist(),
        suffix=suffix,
        void=ignored,
        first=start,
        values=values,
        named=classes is not None,
        assumed={} if classes else _assumptions(scan, numbers, first, void),
    )
    for path, text in lists.items():
        write_atomically(path, text)
    return data


def find_label_folders(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and labels of each split; '' is one that has yet to be split."""
    found: dict[str, tuple[Path, Path]] = {}
    for name, split in {**SPLIT_NAMES, '': ''}.items():
        choices = [(folder / name, folder / f'{name}annot')] if name else []
        for home, below in ((folder, name), (folder / name, '')):
            pairs = itertools.product(
                *(folders_named(home, n) for n in (IMAGE_FOLDERS, LABEL_FOLDERS))
            )
            choices += [(images / below, labels / below) for images, labels in pairs]
        there = (pair for pair in choices if images_by_stem(pair[0]) and _label_files(pair[1]))
        if split not in found and (pair := next(there, None)):
            found[split] = pair
    named = {s: pair for s, pair in found.items() if s in ('train', 'val', 'test')}
    if 'train' in named and len(named) > 1:
        return named
    whole = named.get('train') or found.get('')
    return {'': whole} if whole else {}


def _label_files(folder: Path) -> list[Path]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in paths if path.suffix.lower() in LABEL_SUFFIXES]
    return [path for path in found if not path.name.startswith('.')]


def find_label_suffix(images: Path, labels: Path) -> str:
    """Return what follows the name of an image in that of its labels: ``.png``, ``_mask.png``..."""
    names = [path.name for path in _label_files(labels)]
    stems = list(images_by_stem(images))
    endings = label_endings(stems, names)
    if not endings:
        raise UserError(
            f'The labels in {labels} do not have the names of the images in {images}: '
            f'{names[0]} and {stems[0]}, for instance.'
        )
    return endings[0]


class LabelScan:
    """All labels of a dataset, counted.

    Args:
        paths (list[Path]): The label images.

    Attributes:
        files (int): The number of label images.
        pixels (dict[int, int]): The number of pixels of each label that occurs.
        files_with (dict[int, int]): The number of files that have each label.
        regions (list[dict[int, int]]): The number of connected regions of each label but 0, by
            file, in a sample of the files.

    Raises:
        UserError: If labels are colors, or larger than 255.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.files = len(paths)
        sample = set(paths[:: max(1, len(paths) // SAMPLE)])
        counts = np.zeros((2, IGNORED + 1), np.int64)
        self.regions = []
        for found, regions in map_in_threads(lambda p: _count(p, p in sample), paths):
            counts += found, found > 0
            self.regions += regions
        values = np.flatnonzero(counts[0]).tolist()
        self.pixels = {value: int(counts[0, value]) for value in values}
        self.files_with = {value: int(counts[1, value]) for value in values}

    def describe(self, value: int) -> str:
        """Return how frequent a label is, in words."""
        share = 100 * self.pixels[value] / sum(self.pixels.values())
        return f'{share:.1f} % of the pixels, in {self.files_with[value]} of {self.files} files'

    def check_instances(self, ignored: list[int]) -> None:
        """Raise if labels seem to number objects, each of which is one region."""
        kept = [{v: n for v, n in file.items() if v not in ignored} for file in self.regions]
        files = [regions for regions in kept if regions]
        if not looks_like_instances(files):
            return
        counts = [count for regions in files for count in regions.values()]
        numbers = sorted(len(regions) for regions in files)
        raise UserError(
            f'The labels seem to number objects, not classes: files have {numbers[0]} to '
            f'{numbers[-1]} labels next to 0, and {counts.count(1) / len(counts):.0%} of these are '
            f'one connected region. If so: {FOR_INSTANCES} If they are classes, name them in the '
            'order of their numbers: --classes A B C, or classes.txt in the folder.'
        )


def _count(path: Path, regions: bool) -> tuple[np.ndarray, list[dict[int, int]]]:
    """Return the pixels of each label of a file, and the regions of each label if asked."""
    pixels = _read_label(path)
    counts = np.bincount(pixels.ravel(), minlength=IGNORED + 1)
    if not regions:
        return counts, []
    return counts, [count_regions(pixels)]


def count_regions(labels: np.ndarray) -> dict[int, int]:
    """Return the number of connected regions of each label but 0."""
    masks = {v: (labels == v).astype(np.uint8) for v in np.unique(labels).tolist() if v}
    return {v: cv2.connectedComponents(mask)[0] - 1 for v, mask in masks.items()}


def _read_label(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # a damaged file can raise anything; the check reports it
        raise UserError(f'{path} cannot be read: {error}.') from None
    if mode not in LABEL_MODES:
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


def looks_like_instances(files: list[dict[int, int]]) -> bool:
    """Return whether labels number objects: nearly all are one region, and files have other ones.

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


def _gray_levels(scan: LabelScan, void: list[int], names: list[str] | None) -> list[int]:
    """Return the label of each class if labels are gray levels, such as 0 and 255; else none."""
    values = [value for value in scan.pixels if value not in void]
    steps = [b - a for a, b in itertools.pairwise(sorted({0, *values}))]
    if len(values) < 2 or min(steps) < GRAY_STEP:
        return []
    if names and len(names) != len(values):
        if len(names) > max(values):
            return []  # they are numbers, most of which are not used
        raise UserError(
            f'There are {len(names)} names of classes for {len(values)} labels, '
            f'{", ".join(map(str, values))}. Name each of them in this order, or ignore some: '
            f'--void {values[-1]}, for instance.'
        )
    return values


def _first_class(scan: LabelScan, ignored: list[int], names: list[str] | None) -> int:
    """Return 1 if no label is 0, unless there are names enough for a class 0 that is unused."""
    used = [value for value in scan.pixels if value not in ignored]
    return int(0 not in scan.pixels and not (names and used and len(names) > max(used)))


def _class_names(
    scan: LabelScan, ignored: list[int], classes: list[str] | None, first: int
) -> list[str]:
    """Return the names of the classes; numbers if they are not known."""
    used = [value for value in scan.pixels if value not in ignored and value >= first]
    if not used:
        raise UserError(f'All labels are ignored ones: {", ".join(map(str, scan.pixels))}.')
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
        extra = [value for value in used if value >= first + len(classes)]
        raise UserError(
            f'There are {len(classes)} names of classes, for the labels {first} to '
            f'{first + len(classes) - 1}, but there are others: {", ".join(map(str, extra))}. '
            f'Name these classes too, or ignore them: --void {" ".join(map(str, extra))}.'
        )
    return classes


def _assumptions(
    scan: LabelScan, numbers: Sequence[int], first: int | None, void: list[int] | None
) -> dict[str, str]:
    """Return what is assumed of labels without names, by the option that says otherwise."""
    assumed = {}
    start, last = numbers[0], numbers[-1]
    is_numbered = isinstance(numbers, range)
    if first is None and is_numbered and start:
        assumed['--classes-from 0'] = 'classes start at 1, since no label is 0'
    elif first is None and is_numbered:
        assumed['--classes-from 1'] = f'0 is the first class, not unlabeled: {scan.describe(0)}'
    # Void is in most images, and often has the highest number.
    is_frequent = 2 * scan.files_with[last] >= scan.files
    is_ignored = is_numbered and IGNORED in scan.pixels
    if not void and not is_ignored and len(numbers) > 2 and is_frequent:
        assumed[f'--void {last}'] = f'{last} is a class, not void: {scan.describe(last)}'
    return assumed
