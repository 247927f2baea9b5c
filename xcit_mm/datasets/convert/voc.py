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

from ..folders import SPLIT_NAMES, images_by_stem, read_lines
from ..problems import Problem
from .formats import AnnotatedFolder, AnnotatedImage, Object

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class VocFolder(AnnotatedFolder):
    """XML files in ``Annotations/``, or beside the images.

    Splits are the lists in ``ImageSets/Main``, or else folders named after a split.
    """

    title = 'Pascal VOC'

    @staticmethod
    def score(folder: Path) -> int:
        return 2 if _xml_files(folder) else 0

    def __init__(self, folder: Path, classes: list[str] | None = None) -> None:
        super().__init__(folder)
        self.by_stem = functools.cache(images_by_stem)
        items = self._find_images()
        for name, split in SPLIT_NAMES.items():
            # Other lists, such as aeroplane_train.txt, are about one class.
            path = folder / 'ImageSets' / 'Main' / f'{name}.txt'
            if path.is_file():
                self.splits[split] = self._read_list(path, items)
        if not self.splits:
            for item in items.values():
                parts = item.labels.parent.relative_to(folder).parts
                named = (SPLIT_NAMES[p.lower()] for p in parts if p.lower() in SPLIT_NAMES)
                self.splits.setdefault(next(named, ''), []).append(item)

    def _find_images(self) -> dict[Path, AnnotatedImage]:
        """Return the XML files that have one image."""
        items = {}
        beside = [self.folder / name for name in ('JPEGImages', 'images', '')]
        for path in _xml_files(self.folder):
            # A file in Annotations/train has its image in JPEGImages/train, or in JPEGImages.
            inner = path.parent.relative_to(self.folder).parts[1:]
            places = [path.parent, *(place.joinpath(*inner) for place in beside), *beside]
            found = (self.by_stem(place).get(path.stem) for place in places)
            images = next(filter(None, found), [])
            if len(images) == 1:
                items[path] = AnnotatedImage(images[0], path)
            elif images:
                self.leave_out_ambiguous(images)
            else:
                self.leave_out('image missing', path, 'it has no image')
        return items

    def _read_list(self, path: Path, items: dict[Path, AnnotatedImage]) -> list[AnnotatedImage]:
        by_name = {xml.stem: item for xml, item in items.items()}
        known = {xml.stem for xml in _xml_files(self.folder)}
        images = self.by_stem(self.folder / 'JPEGImages')
        found: dict[str, AnnotatedImage] = {}
        for number, name in read_lines(path).items():
            where = f'{path}, line {number}'
            if Path(name).suffix.lower() in IMAGE_SUFFIXES:
                name = Path(name).stem
            if name not in known:
                name = name.split()[0]  # some lists have a flag after the name
            if name in found:
                self.leave_out('duplicate', where, f'{name} is listed twice')
            elif name in by_name:
                found[name] = by_name[name]
            elif name not in known:
                lacks = 'no XML file' if name in images else 'neither XML file nor image'
                self.leave_out('no annotations', where, f'{name} has {lacks}')
        return list(found.values())

    def read(self, labels: Path, size: tuple[int, int]) -> tuple[list[Object], list[Problem]]:
        """Read the objects of an image.

        Corners are used as they are: a box reaches from xmin to xmax. That is what today's programs
        write, and keeps its width at xmax - xmin. VOC itself counts pixels from 1 and includes the
        last; its boxes come out one pixel short at the left and the top.
        """
        root = _parse(labels)
        objects, problems = [], []
        stated = tuple(
            (root.findtext(f'size/{side}') or '').strip() for side in ('width', 'height')
        )
        if root.find('size') is not None and stated != tuple(map(str, size)):
            detail = f'it says {" x ".join(stated)}; the image has {size[0]} x {size[1]} pixels'
            problems.append(Problem('changed: other size', str(labels), detail))
        for number, element in enumerate(root.iter('object'), 1):
            where = f'object {number}'
            name = (element.findtext('name') or '').strip()
            texts = [element.findtext(f'bndbox/{corner}') or '' for corner in CORNERS]
            try:
                left, top, right, bottom = (float(text) for text in texts)
            except ValueError:
                detail = f'{where} ({name}): {dict(zip(CORNERS, texts, strict=True))}'
                problems.append(Problem('left out: not a number', str(labels), detail))
                continue
            ignored = (element.findtext('difficult') or '').strip() == '1'
            objects.append(Object(name, (left, top, right, bottom), where, ignored=ignored))
        return objects, problems


def _xml_files(folder: Path) -> list[Path]:
    """Return the files in ``Annotations/``, or else all but hidden ones."""
    annotations = folder / 'Annotations'
    found = (annotations if annotations.is_dir() else folder).rglob('*.xml')
    return sorted(p for p in found if not any(s[0] == '.' for s in p.relative_to(folder).parts))


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
