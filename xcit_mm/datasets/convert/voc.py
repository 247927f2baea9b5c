"""Reads folders in the format of Pascal VOC: one XML file per image.

Libraries that convert formats (supervision, globox, pylabel, fiftyone) stop at the first bad file
or drop bad boxes in silence, and bring pandas, SciPy or a database. Saying what was left out is the
point here, and reading the files is short.
"""

import functools
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

from ..check import Problem
from .source import (
    SPLIT_NAMES,
    Item,
    Object,
    Source,
    images_by_stem,
    read_text,
    several_images,
)

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


def find_files(folder: Path) -> list[Path]:
    """The XML files of a folder: those in ``Annotations/``, or else all but hidden ones."""
    annotations = folder / 'Annotations'
    found = (annotations if annotations.is_dir() else folder).rglob('*.xml')
    return sorted(p for p in found if not any(s[0] == '.' for s in p.relative_to(folder).parts))


def find(folder: Path) -> Source:
    """Find the images, their XML files and the splits of a folder.

    Splits are the lists in ``ImageSets/Main``, or else folders named after a split.
    """
    by_stem = functools.cache(images_by_stem)
    items: dict[Path, Item] = {}
    problems: list[Problem] = []
    for path in find_files(folder):
        # A file in Annotations/train has its image in JPEGImages/train, or in JPEGImages.
        relative = path.parent.relative_to(folder).parts[1:]
        beside = [folder / name for name in ('JPEGImages', 'images', '')]
        places = [path.parent, *(place.joinpath(*relative) for place in beside), *beside]
        images = next((found for place in places if (found := by_stem(place).get(path.stem))), [])
        if len(images) == 1:
            items[path] = Item(images[0], path)
        elif images:
            problems.append(several_images(images))
        else:
            problems.append(Problem('left out: image missing', str(path), 'it has no image'))
    lists = _lists(folder)
    splits = {
        split: _listed(path, items, problems, by_stem(folder / 'JPEGImages'))
        for split, path in lists.items()
    }
    if not lists:
        for path, item in items.items():
            parts = path.parent.relative_to(folder).parts
            split = next((SPLIT_NAMES[p.lower()] for p in parts if p.lower() in SPLIT_NAMES), '')
            splits.setdefault(split, []).append(item)
    return Source(read, splits, problems=problems)


def _lists(folder: Path) -> dict[str, Path]:
    """The lists of whole splits; others, such as ``aeroplane_train.txt``, are about one class."""
    paths = sorted((folder / 'ImageSets' / 'Main').glob('*.txt'))
    found = {SPLIT_NAMES[p.stem.lower()]: p for p in paths if p.stem.lower() in SPLIT_NAMES}
    return {split: found[split] for split in dict.fromkeys(SPLIT_NAMES.values()) if split in found}


def _listed(
    path: Path, items: dict[Path, Item], problems: list[Problem], images: dict[str, list[Path]]
) -> list[Item]:
    """The images of a list, each once."""
    by_stem = {xml.stem: item for xml, item in items.items()}
    known = {Path(p.file).stem for p in problems if p.kind == 'left out: image missing'}
    found: dict[str, Item] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        where, name = f'{path}, line {number}', line.strip()
        if Path(name).suffix.lower() in IMAGE_SUFFIXES:
            name = Path(name).stem
        if name not in by_stem and name.split()[:1]:
            name = name.split()[0]  # some lists have a flag after the name
        if not name or name in known:
            continue
        if name in found:
            problems.append(Problem('left out: duplicate', where, f'{name} is listed twice'))
        elif name in by_stem:
            found[name] = by_stem[name]
        elif len(images.get(name, ())) <= 1:
            lacks = 'no XML file' if name in images else 'neither XML file nor image'
            problems.append(Problem('left out: no annotations', where, f'{name} has {lacks}'))
    return list(found.values())


def read(path: Path, size: tuple[int, int]) -> tuple[list[Object], list[Problem]]:
    """Read the objects of an image; see :data:`.source.Reader`.

    Corners are used as they are: a box reaches from xmin to xmax. That is what today's programs
    write, and keeps its width at xmax - xmin. VOC itself counts pixels from 1 and includes the
    last; its boxes come out one pixel short at the left and the top.

    Raises:
        ValueError: If it is not an XML file of VOC.
    """
    root = _parse(path)
    objects, problems = [], list(_wrong_size(root, path, size))
    for number, element in enumerate(root.iter('object'), 1):
        where = f'object {number}'
        name = (element.findtext('name') or '').strip()
        texts = [element.findtext(f'bndbox/{corner}') or '' for corner in CORNERS]
        try:
            left, top, right, bottom = (float(text) for text in texts)
        except ValueError:
            detail = f'{where} ({name}): {dict(zip(CORNERS, texts, strict=True))}'
            problems.append(Problem('left out: not a number', str(path), detail))
            continue
        ignored = (element.findtext('difficult') or '').strip() == '1'
        objects.append(Object(name, (left, top, right, bottom), where, ignored=ignored))
    return objects, problems


def _parse(path: Path) -> ElementTree.Element:
    content = path.read_bytes()
    checker = expat.ParserCreate()
    # Entities can make a small file fill the memory, and only a DOCTYPE can define them.
    checker.StartDoctypeDeclHandler = _refuse
    try:
        checker.Parse(content, True)
        root = ElementTree.fromstring(content)
    except (expat.ExpatError, ElementTree.ParseError, LookupError) as error:
        raise ValueError(f'not valid XML: {error}') from None
    if root.tag != 'annotation':
        raise ValueError(f'its root is <{root.tag}>, not <annotation>')
    return root


def _refuse(*_: object) -> None:
    raise ValueError('it has a DOCTYPE, which VOC files do not need and which can be an attack')


def _wrong_size(root: ElementTree.Element, path: Path, size: tuple[int, int]) -> list[Problem]:
    if root.find('size') is None:
        return []
    stated = tuple((root.findtext(f'size/{side}') or '').strip() for side in ('width', 'height'))
    if stated == tuple(map(str, size)):
        return []
    detail = f'it says {" x ".join(stated)}; the image has {size[0]} x {size[1]} pixels'
    return [Problem('changed: other size', str(path), detail)]
