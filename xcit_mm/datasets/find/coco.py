"""Finds boxes and masks in COCO's format."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcit_mm_runtime.coco import read_coco
from xcit_mm_runtime.files import write_atomically

from ...errors import UserError
from ..folders import relative_to, split_randomly
from ..objects import Objects
from .data import SAMPLE, FoundData, Split

# What the files that we convert are described by.
CONVERTED = 'converted by xcit_mm'


@dataclass
class _AnnotationFile:
    """An annotation file, its content, and where its images are, relative to the data's root."""

    path: Path
    content: dict[str, Any]
    images: str = ''


def find_coco(
    folder: Path,
    generated: Path,
    classes: list[str] | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
) -> FoundData | None:
    """Find the COCO files of a folder and their images; None if there are none.

    Args:
        folder (Path): The folder.
        generated (Path): Where converted files are, and where files of a random split go.
        classes (list[str], optional): Classes to use. Defaults to None, all that occur.
        val_fraction (float): The part for validation, if there is no file for it.
        seed (int): The seed of that choice.

    Raises:
        UserError: If the files cannot be used.
    """
    # Files of a random split are made again from the one that was split, which may have changed.
    files = _find_files(folder, but=generated) or _find_files(generated)
    if not files:
        return None
    if 'train' not in files:
        whole = files.pop('trainval', None) or files.pop('', None)
        if whole is None:
            raise UserError(f'{folder} has COCO files for {", ".join(files)}, none for training.')
        files['train'] = whole
    files = {split: files[split] for split in ('train', 'val', 'test') if split in files}
    for split, file in files.items():
        file.images = _find_images(folder, split, file)
    is_whole = files.keys() == {'train'}
    if is_whole:
        files = _split_file(files['train'], generated, val_fraction, seed)
    train = files['train']
    objects = [
        one for f in files.values() for one in f.content['annotations'] if not one.get('iscrowd')
    ]
    names = _choose_classes(train, objects, classes, folder, generated)
    maskless = sum(not one.get('segmentation') for one in objects)
    images = {
        split: [folder / file.images / image['file_name'] for image in file.content['images']]
        for split, file in files.items()
    }
    splits = {
        split: Split(relative_to(file.path, folder), file.images, '', len(images[split]))
        for split, file in files.items()
    }
    every = [str(category.get('name')) for category in train.content['categories']]
    data = FoundData.describe(
        folder,
        splits,
        images,
        names,
        objects=Objects.join(Objects.read(file.content, names) for file in files.values()),
        masks=bool(objects) and not maskless,
        maskless=maskless if maskless < len(objects) else 0,
        unused=[] if classes else [name for name in every if name not in names],
    )
    if is_whole:
        for file in files.values():
            write_atomically(file.path, json.dumps(file.content) + '\n')
    return data


def _find_files(folder: Path, but: Path | None = None) -> dict[str, _AnnotationFile]:
    """Return the COCO files below a folder, by split; one that names no split has ''."""
    found: dict[str, list[_AnnotationFile]] = {}
    for path in sorted(p for depth in ('*', '*/*', '*/*/*') for p in folder.glob(f'{depth}.json')):
        if but is not None and path.resolve().is_relative_to(but.resolve()):
            continue
        try:
            content = read_coco(path)
        except ValueError:
            continue
        if content['annotations']:
            words = f'{path.parent.relative_to(folder)} {path.stem}'.lower()
            split = next((s for s in ('trainval', 'train', 'val', 'test') if s in words), '')
            found.setdefault(split, []).append(_AnnotationFile(path, content))
    chosen = {}
    for split, files in found.items():
        # COCO's own folder has files of key points, too.
        instances = [file for file in files if file.path.name.startswith('instances')] or files
        if len(instances) > 1:
            names = ', '.join(str(file.path) for file in instances)
            raise UserError(
                f'There are several annotation files for {split or "one split"}: {names}. Keep one '
                'of them in the folder, and move the others out.'
            )
        chosen[split] = instances[0]
    return chosen


def _find_images(folder: Path, split: str, file: _AnnotationFile) -> str:
    """Return the folder, relative to the data's root, in which the images of a file are."""
    if nameless := [image for image in file.content['images'] if 'file_name' not in image]:
        raise UserError(f'{file.path}: an image has no file_name: {nameless[0]}.')
    names = [image['file_name'] for image in file.content['images']]
    sample = names[:: max(1, len(names) // SAMPLE)]
    below = sorted(p for depth in ('*', '*/*') for p in folder.glob(depth) if p.is_dir())
    # Splits may have images of the same names, so folders that are named after this one go first.
    own = [place for place in below if split in relative_to(place, folder).lower()]
    places = [*own, folder, file.path.parent, file.path.parent.parent, *below]
    found = {place: sum((place / name).is_file() for name in sample) for place in places}
    place = max(found, key=lambda one: found[one])
    if not found[place]:
        looked_for = f'it lists {names[0]}' if names else 'it lists none'
        raise UserError(f'The images of {file.path} are nowhere in {folder}: {looked_for}.')
    prefix = relative_to(place, folder)
    return '' if prefix == '.' else f'{prefix}/'


def _split_file(
    file: _AnnotationFile, generated: Path, fraction: float, seed: int
) -> dict[str, _AnnotationFile]:
    """Split a file into train and val, with paths of images from the data's root."""
    content = file.content
    by_name = {file.images + image['file_name']: image for image in content['images']}
    parts = {}
    for split, names in split_randomly(by_name, fraction, seed).items():
        images = [{**by_name[name], 'file_name': name} for name in names]
        ids = {image.get('id') for image in images}
        kept = [one for one in content['annotations'] if one.get('image_id') in ids]
        part = {**content, 'images': images, 'annotations': kept}
        parts[split] = _AnnotationFile(generated / f'{split}.json', part)
    return parts


def _choose_classes(
    file: _AnnotationFile,
    objects: list[dict],
    wanted: list[str] | None,
    folder: Path,
    generated: Path,
) -> list[str]:
    """Return the classes in the file's order, in which mmdet numbers them; without unused ones."""
    categories = file.content['categories']
    names = [str(category.get('name')) for category in categories]
    if wanted is not None:
        if unknown := [name for name in wanted if name not in names]:
            known = ', '.join(names)
            again = ''
            if (file.content.get('info') or {}).get('description') == CONVERTED:
                place = [] if generated == folder / 'coco' else ['--out', str(generated)]
                words = [str(folder), '--classes', *wanted, *place, '--force']
                again = f' To convert it with other ones: xcit-mm convert-data {shlex.join(words)}'
            raise UserError(
                f'{file.path} has no class {unknown[0]}; its classes are {known}.{again}'
            )
        return [name for name in names if name in wanted]
    used = {one.get('category_id') for one in objects}
    found = [str(c.get('name')) for c in categories if c.get('id') in used]
    if not found:
        raise UserError(f'{file.path} and its neighbors have no objects of a class.')
    return found
