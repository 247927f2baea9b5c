"""Checks datasets as a config defines them: every image, every annotation, every label."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.registry import DATASETS

from xcit_mm_runtime.coco import read_coco
from xcit_mm_runtime.progress import track

from ..folders import count_file_types
from ..images import check_image, map_in_threads
from ..objects import Objects
from ..problems import CheckReport, Problem
from .coco import STOPPING, check_coco
from .labels import (
    LabelRules,
    check_any_label,
    check_label,
    check_reduce_zero_label,
    find_unused_classes,
    join_suffixes,
    orphan_labels,
)


class ImageCheck:
    """The check of a dataset of images without annotations; the others inherit from it.

    Args:
        dataset (BaseDataset): The dataset, whose content is not loaded.
        masks (bool): Whether its pipeline loads masks.
    """

    def __init__(self, dataset: Any, masks: bool) -> None:
        self.dataset = dataset
        self.objects: Objects | None = None
        self.problems, self.images = self.check_annotations(masks)

    def check_annotations(self, masks: bool) -> tuple[list[Problem], list[Any]]:
        """Return the problems of the dataset as a whole, and what describes each image."""
        paths = dict.fromkeys(info['img_path'] for info in self.dataset.load_data_list())
        # No decoder of images reads arrays.
        return [], [path for path in paths if not path.lower().endswith('.npy')]

    def check_image(self, image: Any) -> list[Problem]:
        """Return the problems of one image."""
        return check_image(image)[0]

    def finish(self) -> list[Problem]:
        """Return the problems that show after all images were checked."""
        return []


class CocoCheck(ImageCheck):
    """Checks boxes and masks in COCO's format."""

    def check_annotations(self, masks: bool) -> tuple[list[Problem], list[Any]]:
        dataset = self.dataset
        try:
            content = read_coco(dataset.ann_file)
        except ValueError as error:
            return [Problem('annotations: not COCO', dataset.ann_file, str(error))], []
        classes = dataset.metainfo['classes']
        self.objects = Objects.read(content, classes)
        problems = list(check_coco(content, dataset.ann_file, classes, masks))
        if not any(problem.kind in STOPPING for problem in problems):
            with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints four lines
                dataset.data_list = dataset.load_data_list()
            if not dataset.filter_data():
                problems.append(explain_empty(dataset, len(dataset.data_list)))
        return problems, [image for image in content['images'] if 'file_name' in image]

    def check_image(self, image: Any) -> list[Problem]:
        size = (image['width'], image['height']) if {'width', 'height'} <= image.keys() else None
        return check_image(str(Path(self.dataset.data_prefix['img'], image['file_name'])), size)[0]


class LabelCheck(ImageCheck):
    """Checks label images of semantic segmentation."""

    def check_annotations(self, masks: bool) -> tuple[list[Problem], list[Any]]:
        self.rules, self.used = LabelRules.of(self.dataset), np.zeros(256, bool)
        infos = self.dataset.load_data_list()
        problem = check_any_label(self.dataset, infos) if infos else explain_empty(self.dataset)
        return ([problem], []) if problem else (orphan_labels(self.dataset, infos), infos)

    def check_image(self, image: Any) -> list[Problem]:
        problems, size = check_image(image['img_path'])
        if size is not None and 'seg_map_path' in image:
            problems += check_label(image, self.rules, size, self.used)
        return problems

    def finish(self) -> list[Problem]:
        return find_unused_classes(self.dataset, self.used) if self.images else []


# The class of a dataset, or one that it inherits from -> how it is checked.
CHECKS = {
    'CocoDataset': CocoCheck,
    'BaseSegDataset': LabelCheck,
    'CocoObjects': ImageCheck,
    'LabeledFolder': ImageCheck,
    'UnlabeledFolder': ImageCheck,
}


def find_problems(datasets: dict[str, list[dict]], workers: int | None = None) -> CheckReport:
    """Check datasets.

    Args:
        datasets (dict[str, list[dict]]): The innermost datasets of a config, by split.
        workers (int, optional): Threads that decode images. Defaults to None, one per core.

    Raises:
        TypeError: If nothing in :data:`CHECKS` fits a dataset.
    """
    report, seen = CheckReport(list(datasets)), set()
    for split, configs in datasets.items():
        for config in configs:
            dataset, pipeline = build_lazily(config), config.get('pipeline', ())
            masks = any(step.get('with_mask', False) for step in pipeline)
            key = (str(dataset.ann_file), str(dataset.data_prefix), masks)
            if key in seen:
                continue
            seen.add(key)
            if problem := check_reduce_zero_label(dataset, pipeline):
                report.problems.append(problem)
                continue
            check = _choose_check(dataset)(dataset, masks)
            report.problems += check.problems
            report.images += len(check.images)
            results = map_in_threads(check.check_image, check.images, workers)
            for found in track(results, split, len(check.images)):
                report.problems += found
            report.problems += check.finish()
            if check.objects is not None:
                before = [report.objects[split]] if split in report.objects else []
                report.objects[split] = Objects.join([*before, check.objects])
    return report


def build_lazily(config: dict) -> Any:
    """Build the dataset of a config, with its paths and classes, without its content."""
    return DATASETS.build({**config, 'lazy_init': True, 'pipeline': []})


def _choose_check(dataset: Any) -> type[ImageCheck]:
    for kind in type(dataset).__mro__:
        if kind.__name__ in CHECKS:
            return CHECKS[kind.__name__]
    raise TypeError(
        f'{type(dataset).__name__} is neither a CocoDataset, nor a BaseSegDataset, nor a folder of '
        'images'
    )


def explain_empty(dataset: Any, found: int = 0) -> Problem:
    """Return the problem of a dataset that has no images.

    Args:
        dataset (BaseDataset): The dataset.
        found (int): How many images it had before ``filter_cfg``. Defaults to 0.
    """
    if found:
        settings = ', '.join(f'{name}={value}' for name, value in dataset.filter_cfg.items())
        detail = f'filter_cfg leaves out all {found} images by {settings}'
        return Problem('dataset: empty', dataset.ann_file, detail)
    if dataset.ann_file:
        return Problem('dataset: empty', dataset.ann_file, 'it lists no images')
    folder = dataset.data_prefix.get('img_path') or ''
    detail = (
        f'no file ends in {join_suffixes(dataset.img_suffix)}; the folder has '
        f'{count_file_types(Path(folder))}. Set img_suffix of the dataset'
    )
    return Problem('dataset: empty', str(folder), detail)
