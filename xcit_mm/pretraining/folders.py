"""Images in folders, and objects in images, as datasets of mmengine."""

from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from xcit_mm_runtime.coco import read_coco
from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

from ..datasets.problems import DataError

# How many files are tried in place of one that cannot be read.
TRIALS = 100
# Arrays are for images with more channels than image files have.
SUFFIXES = (*IMAGE_SUFFIXES, '.npy')


def images_below(folder: Path) -> list[Path]:
    """Find the images in a folder and in all folders below it, sorted."""
    return sorted(path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES)


def class_folders(root: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted: by number if all are numbers.

    The folders of ImageNet-V2 are called 0 to 999.
    """
    names = sorted(path.name for path in root.iterdir() if path.is_dir())
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


@DATASETS.register_module()
class UnlabeledFolder(BaseDataset):
    """The images in a folder and in all folders below it.

    If a pipeline returns None for a file, as for one that cannot be read, another one takes its
    place.

    Args:
        *args: As for mmengine's ``BaseDataset``. The folder is ``data_prefix['img_path']``, below
            ``data_root``. ``ann_file`` may be a text file that lists the images to use, one path
            below the folder per line, with or without its suffix.
        **kwargs: Likewise.
    """

    def load_data_list(self) -> list[dict]:
        """Return one dict per image, with ``img_path``."""
        root = Path(self.data_prefix['img_path'])
        found = images_below(root)
        if not found:
            raise DataError(
                f'{root.absolute()} has no images: files that end in one of {" ".join(SUFFIXES)}.'
            )
        if self.ann_file:
            found = self._listed(found, root)
        return [dict(img_path=str(path)) for path in found]

    def _listed(self, paths: list[Path], root: Path) -> list[Path]:
        """Return those of the paths that the list names."""
        lines = Path(self.ann_file).read_text(encoding='utf-8').splitlines()
        wanted = {line.strip() for line in lines} - {''}
        names = {path: path.relative_to(root) for path in paths}
        by_name = {str(name): path for path, name in names.items()}
        by_stem = {str(name.with_suffix('')): path for path, name in names.items()}
        if not wanted:
            raise DataError(f'{self.ann_file} names no images.')
        missing = wanted - by_name.keys() - by_stem.keys()
        if missing:
            raise DataError(
                f'{self.ann_file} names {min(missing)}, which is not in {root.absolute()}.'
            )
        return sorted({by_name.get(name) or by_stem[name] for name in wanted})

    def __getitem__(self, index: int) -> dict:
        """As in mmengine; raises a :class:`DataError` if too many files are of no use."""
        for _ in range(TRIALS):
            data = self.prepare_data(index)
            if data is not None:
                return data
            index = int(np.random.randint(len(self)))
        raise DataError(f'{self.data_prefix["img_path"]} has too few images that can be read.')


@DATASETS.register_module()
class LabeledFolder(BaseDataset):
    """ImageNet's layout: one folder per class, with images in it at any depth.

    The number of a class is its place in the list of folders, see :func:`class_folders`.

    Args:
        *args: As for mmengine's ``BaseDataset``. The folders are in ``data_prefix['img_path']``,
            below ``data_root``. ``metainfo['classes']`` may list the classes in another order.
        role (str, optional): What the images are for, see :mod:`.metrics`. Defaults to None.
        **kwargs: As for mmengine's ``BaseDataset``.
    """

    def __init__(self, *args: Any, role: str | None = None, **kwargs: Any) -> None:
        self.role = role
        super().__init__(*args, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Return one dict per image, with ``img_path`` and ``gt_label``."""
        root = Path(self.data_prefix['img_path'])
        names = self._metainfo.get('classes') or class_folders(root)
        self._metainfo['classes'] = tuple(names)
        found = [
            dict(img_path=str(path), gt_label=label, role=self.role)
            for label, name in enumerate(names)
            for path in images_below(root / name)
        ]
        if not found:
            raise DataError(
                f'{root.absolute()} has no images in folders of classes, such as '
                f'{root.name}/CLASS/NAME.jpg.'
            )
        return found


@DATASETS.register_module()
class INaturalist(BaseDataset):
    """iNaturalist's layout: a file in COCO's format with one category per image, and no boxes.

    The number of a class is the place of its id among those of the file.

    Args:
        *args: As for mmengine's ``BaseDataset``: ``ann_file`` and ``data_prefix['img_path']``.
        **kwargs: Likewise.
    """

    def load_data_list(self) -> list[dict]:
        """Return one dict per image, with ``img_path`` and ``gt_label``."""
        content = _read_annotations(self.ann_file)
        names = {category['id']: str(category['name']) for category in content['categories']}
        labels = {number: label for label, number in enumerate(sorted(names))}
        self._metainfo['classes'] = tuple(names[number] for number in labels)
        root = Path(self.data_prefix['img_path'])
        paths = {image['id']: str(root / image['file_name']) for image in content['images']}
        return [
            dict(img_path=paths[item['image_id']], gt_label=labels[item['category_id']])
            for item in content['annotations']
        ]


def _read_annotations(path: str) -> dict[str, Any]:
    try:
        return read_coco(path)
    except ValueError as error:
        raise DataError(f'{path}: {error}') from None


@DATASETS.register_module()
class CocoObjects(BaseDataset):
    """The objects of a dataset in COCO's format, each cut out as an image with one label.

    Args:
        *args: As for mmengine's ``BaseDataset``: ``ann_file`` and ``data_prefix['img_path']``.
        margin (float): What is kept around a box, as a part of its longer side. Defaults to 0.1.
        role (str, optional): What the objects are for, see :mod:`.metrics`. Defaults to None.
        **kwargs: As for mmengine's ``BaseDataset``.
    """

    def __init__(
        self, *args: Any, margin: float = 0.1, role: str | None = None, **kwargs: Any
    ) -> None:
        self.margin = margin
        self.role = role
        super().__init__(*args, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Return one dict per object, with ``img_path``, ``gt_label`` and ``crop`` (x, y, x, y)."""
        content = _read_annotations(self.ann_file)
        categories = {category['id']: category['name'] for category in content['categories']}
        names = self._metainfo.get('classes') or tuple(categories.values())
        self._metainfo['classes'] = tuple(names)
        images = {image['id']: image for image in content['images']}
        found = []
        for item in content['annotations']:
            name, image = categories[item['category_id']], images[item['image_id']]
            if name in names and not item.get('iscrowd') and min(item['bbox'][2:]) >= 1:
                path = Path(self.data_prefix['img_path']) / image['file_name']
                crop = self._square(item['bbox'], image['width'], image['height'])
                info = dict(img_path=str(path), gt_label=list(names).index(name), crop=crop)
                found.append({**info, 'role': self.role})
        if not found:
            raise DataError(f'{self.ann_file} has no objects of the classes {", ".join(names)}.')
        return found

    def _square(self, box: list[float], width: int, height: int) -> tuple[int, int, int, int]:
        """Return the square around a box, with its margin, as far as it lies inside the image."""
        x, y, w, h = box
        half = max(w, h) * (0.5 + self.margin)
        left, top = int(max(0, x + w / 2 - half)), int(max(0, y + h / 2 - half))
        right, low = int(min(width, x + w / 2 + half)), int(min(height, y + h / 2 + half))
        return left, top, max(right, left + 1), max(low, top + 1)
