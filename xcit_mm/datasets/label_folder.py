"""Defines a dataset of images and label PNGs in any folders, with any names and class numbers.

This module imports mmseg, so ``import xcit_mm`` does not load it. Configs that inherit ours name it
in ``custom_imports``.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import mmengine
from mmengine import fileio
from mmengine.registry import DATASETS
from mmseg.datasets import BaseSegDataset

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

from .check.labels import check_any_label, join_suffixes
from .folders import stem_of
from .problems import DataError

# LoadAnnotations writes it for unlabeled pixels, and losses and metrics ignore it.
IGNORED = 255
# Stands for values that are those of no class.
UNKNOWN = 254


@DATASETS.register_module()
class LabelFolder(BaseSegDataset):
    """Pairs each image with the label that has the same name up to the suffix.

    Nothing has to be converted: the arguments say which files there are and what their values mean.

    Args:
        img_suffix (str or Sequence[str], optional): How names of images end. Defaults to None, any
            type of image.
        seg_map_suffix (str or Sequence[str], optional): How names of labels end, for instance
            ``_L.png`` for ``0001_L.png``, the label of ``0001.jpg``. Defaults to None, any type of
            image.
        void (int or Sequence[int]): Values in the label files that mean no class. Training and
            evaluation ignore them. Defaults to ().
        values (Sequence[int], optional): The value of each class in the label files, for instance
            (0, 255) for black-and-white masks. Defaults to None: classes are numbered.
        reduce_zero_label (bool): Whether 0 means unlabeled and classes count from 1. Defaults to
            False: classes count from 0.
        **kwargs: As in ``BaseSegDataset``. ``metainfo=dict(classes=...)`` is required; ``ann_file``
            may list the names of a split.

    Raises:
        DataError: If the arguments contradict each other or the files.
    """

    def __init__(
        self,
        img_suffix: str | Sequence[str] | None = None,
        seg_map_suffix: str | Sequence[str] | None = None,
        void: int | Sequence[int] = (),
        values: Sequence[int] | None = None,
        lazy_init: bool = False,
        **kwargs: Any,
    ) -> None:
        self.unlabeled: list[str] = []
        if not (kwargs.get('metainfo') or {}).get('classes'):
            raise DataError(
                "LabelFolder needs the names of the classes: metainfo=dict(classes=('road', ...)), "
                'in the order of their numbers.'
            )
        suffixes = dict(img_suffix=img_suffix, seg_map_suffix=seg_map_suffix)
        for name, suffix in suffixes.items():
            kwargs[name] = (suffix,) if isinstance(suffix, str) else tuple(suffix or IMAGE_SUFFIXES)
        super().__init__(lazy_init=True, **kwargs)
        voids = (void,) if isinstance(void, int) else tuple(void)
        self.values = None if values is None else tuple(values)
        if self.values is None:
            self._check_void(voids)
        else:
            self._check_values(self.values, voids)
        first = int(self.reduce_zero_label)
        # LoadAnnotations applies this map after reduce_zero_label, which also handles 0 and 255.
        self.label_map = {v - first: IGNORED for v in voids if v >= first and v != IGNORED} or None
        if self.values is not None:
            numbers = {value: number for number, value in enumerate(self.values)}
            # Another value is not the number of a class by chance.
            others = dict.fromkeys(range(len(numbers)), UNKNOWN)
            self.label_map = {**others, **(self.label_map or {}), **numbers}
        self._metainfo['label_map'] = self.label_map
        if not lazy_init:
            self.full_init()

    def _check_void(self, values: tuple[int, ...]) -> None:
        classes, first = self._metainfo['classes'], int(self.reduce_zero_label)
        for value in values:
            if not isinstance(value, int) or not 0 <= value <= IGNORED:
                raise DataError(
                    f'void={value!r}: values of labels are whole numbers from 0 to 255.'
                )
            if first <= value < first + len(classes):
                hint = ' If 0 means unlabeled, set reduce_zero_label=True instead.'
                raise DataError(
                    f'void={value} is also the number of the class {classes[value - first]!r}: '
                    f'classes count from {first}, so they are {first} to '
                    f'{first + len(classes) - 1}.{"" if value else hint}'
                )

    def _check_values(self, values: tuple[int, ...], voids: tuple[int, ...]) -> None:
        classes = self._metainfo['classes']
        for value in (*values, *voids):
            if not isinstance(value, int) or not 0 <= value <= IGNORED or value == UNKNOWN:
                raise DataError(
                    f'values={values}, void={voids}: values of labels are whole numbers from 0 to '
                    f'255, without {UNKNOWN}.'
                )
        if len(set(values)) != len(classes) or len(values) != len(classes):
            raise DataError(
                f'values={values} must have a value of its own for each of the {len(classes)} '
                f'classes: {", ".join(classes)}.'
            )
        if both := set(values) & set(voids):
            raise DataError(f'{min(both)} is in both values and void.')
        if self.reduce_zero_label:
            raise DataError(
                'values and reduce_zero_label=True exclude each other: leave the value of '
                'unlabeled pixels out of values, and list it in void.'
            )

    def load_data_list(self) -> list[dict]:
        """Pair images and labels.

        Returns:
            list[dict]: As in ``BaseSegDataset``. Labels that do not exist have the name that was
            looked for; they are also in ``self.unlabeled``.
        """
        folder, label_folder = (self.data_prefix.get(k) for k in ('img_path', 'seg_map_path'))
        if folder == label_folder and self.img_suffix == self.seg_map_suffix:
            raise DataError(
                f'{folder} has both the images and the labels. Set img_suffix and seg_map_suffix '
                "of the dataset to tell them apart, for instance '.jpg' and '.png'."
            )
        labels = {} if label_folder is None else self._files(label_folder, self.seg_map_suffix)
        taken = labels.values() if folder == label_folder else ()
        images = self._files(folder, self.img_suffix, taken)
        # The name of a label that does not exist, for messages.
        usual = '.png' if '.png' in self.seg_map_suffix else self.seg_map_suffix[0]
        self.unlabeled = []
        infos = []
        for stem in self._stems(images):
            info = dict(
                img_path=os.path.join(folder, images.get(stem, stem + self.img_suffix[0])),
                label_map=self.label_map,
                reduce_zero_label=self.reduce_zero_label,
                seg_fields=[],
            )
            if label_folder is not None:
                label = labels.get(stem, stem + usual)
                info['seg_map_path'] = os.path.join(label_folder, label)
                if stem not in labels:
                    self.unlabeled.append(info['img_path'])
            infos.append(info)
        return infos

    def _files(self, folder: str, suffixes: tuple, others: Iterable[str] = ()) -> dict[str, str]:
        """Return the files in a folder and below that have a suffix, by their stems."""
        found: dict[str, str] = {}
        names = fileio.list_dir_or_file(
            folder, list_dir=False, recursive=True, backend_args=self.backend_args
        )
        for name in sorted(set(names) - set(others)):
            stem = stem_of(name, suffixes)
            if stem in found:
                raise DataError(
                    f'{folder} has both {found[stem]} and {name}. Remove one of them, or set '
                    'img_suffix or seg_map_suffix of the dataset to the type that is meant.'
                )
            if stem:
                found[stem] = name
        return found

    def _stems(self, images: dict[str, str]) -> list[str]:
        if not self.ann_file or os.path.isdir(self.ann_file):
            return list(images)
        lines = mmengine.list_from_file(self.ann_file, backend_args=self.backend_args)
        names = filter(None, (line.strip() for line in lines))
        return [n if n in images else stem_of(n, self.img_suffix) or n for n in names]

    def filter_data(self) -> list[dict]:
        """Return all images; raise if some have no label."""
        if self.unlabeled:
            if problem := check_any_label(self, self.data_list):
                raise DataError(f'{problem}.')
            raise DataError(
                f'{len(self.unlabeled)} of {len(self.data_list)} images have no label in '
                f'{self.data_prefix["seg_map_path"]} that has the same name and ends in '
                f'{join_suffixes(self.seg_map_suffix)}; the first is {self.unlabeled[0]}. '
                'tools/check_dataset.py lists them all.'
            )
        return super().filter_data()
