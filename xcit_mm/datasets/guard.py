"""Data sets that stop a run with the name of the file that is at fault.

mmdet and mmseg skip some faults, as :mod:`.check` lists. Others raise what names no file (an image
of zero bytes), fail long after (labels out of range, on CUDA with an assertion of the device), or
go unnoticed (labels of another size, two images with one id).
"""

import contextlib
from typing import Any

from mmengine.dataset import Compose
from mmengine.registry import DATASETS

from .check import DataError
from .check.coco import STOPPING, check_coco
from .check.labels import Labels, wrong_labels

HINT = 'tools/check_dataset.py finds all such files.'


def guarded(config: dict) -> dict:
    """A config that mmengine builds with :func:`build_guarded`."""
    return dict(type=build_guarded, config=config)


def build_guarded(config: dict) -> Any:
    """Build a data set, or one that wraps others, guarded.

    Args:
        config (dict): As in a data loader of a config.

    Raises:
        DataError: If its annotations are at fault.
    """
    if 'dataset' in config:
        return DATASETS.build({**config, 'dataset': guarded(config['dataset'])})
    if 'datasets' in config:
        return DATASETS.build({**config, 'datasets': [guarded(c) for c in config['datasets']]})
    dataset = DATASETS.build({**config, 'lazy_init': True})
    if not hasattr(dataset, 'full_init'):
        return dataset
    try:
        _load(dataset)
    except DataError:
        raise
    except Exception as error:  # whatever a file in a wrong format makes its reader raise
        file = getattr(dataset, 'ann_file', '') or getattr(dataset, 'data_prefix', '')
        raise DataError(f'{file}: {type(error).__name__}: {error}. {HINT}') from error
    dataset.pipeline = GuardedPipeline(dataset)
    return dataset


def _load(dataset: Any) -> None:
    """Load the annotations; mmdet's data sets name the class that reads COCO's format."""
    if not hasattr(dataset, 'COCOAPI'):
        dataset.full_init()
        return
    classes = dataset.metainfo.get('classes')

    class Guarded(dataset.COCOAPI):
        def createIndex(self) -> None:
            for problem in check_coco(self.dataset, dataset.ann_file, classes):
                if problem.kind in STOPPING:
                    raise DataError(f'{problem}. {HINT}')
            super().createIndex()

    dataset.COCOAPI = Guarded
    try:
        dataset.full_init()
    finally:
        del dataset.COCOAPI


class GuardedPipeline(Compose):
    """A data set's pipeline whose errors name the image.

    Args:
        dataset (BaseDataset): The data set.
    """

    def __init__(self, dataset: Any) -> None:
        self.transforms = dataset.pipeline.transforms
        self.labels: Labels | None = None
        with contextlib.suppress(ImportError):
            from mmseg.datasets import BaseSegDataset

            if isinstance(dataset, BaseSegDataset):
                self.labels = Labels.of(dataset)

    def __call__(self, data: dict) -> dict | None:
        names = [data[key] for key in ('img_path', 'seg_map_path') if data.get(key)]
        for transform in self.transforms:
            unlabelled = 'gt_seg_map' not in data
            try:
                data = transform(data)
            except Exception as error:  # whatever a damaged file makes a decoder raise
                raise DataError(
                    f'{" and ".join(names)}: {type(transform).__name__} failed: '
                    f'{type(error).__name__}: {" ".join(str(error).split())}. {HINT}'
                ) from error
            if data is None:
                return None
            if self.labels and unlabelled and 'gt_seg_map' in data:
                check_loaded_labels(data, self.labels)
        return data


def check_loaded_labels(data: dict, allowed: Labels) -> None:
    """Raise if the labels in a pipeline's data are not what they may be."""
    path, size = data['seg_map_path'], data['ori_shape'][:2]
    problem = wrong_labels(data['gt_seg_map'], path, allowed, size)
    if problem:
        raise DataError(f'{problem}. {HINT}')
