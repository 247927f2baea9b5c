"""Datasets whose errors name the faulty file.

mmdet and mmseg skip some faults; :mod:`.check` lists them. Others raise an error that names no file
(an image of zero bytes), fail much later (labels out of range, on CUDA with a device assertion), or
go unnoticed (labels of another size, two images with the same id).
"""

import contextlib
import io
from typing import Any

from mmengine.dataset import BaseDataset, Compose
from mmengine.registry import DATASETS

from .check.coco import STOPPING, check_coco
from .check.datasets import explain_empty
from .check.labels import LabelRules, check_loaded_label, check_reduce_zero_label
from .problems import DataError

HINT = 'tools/check_dataset.py finds all such files.'


def guarded(config: dict) -> dict:
    """Return a config that mmengine builds with :func:`build_guarded`."""
    return dict(type=build_guarded, config=config)


def build_guarded(config: dict) -> Any:
    """Build a dataset, or a wrapper of datasets, and let its pipeline name faulty files.

    Args:
        config (dict): As in a data loader of a config.

    Raises:
        DataError: If its annotations are faulty.
    """
    if 'dataset' in config:
        return DATASETS.build({**config, 'dataset': guarded(config['dataset'])})
    if 'datasets' in config:
        return DATASETS.build({**config, 'datasets': [guarded(c) for c in config['datasets']]})
    kind = config['type']
    if isinstance(kind, str):
        with DATASETS.switch_scope_and_registry(config.get('_scope_')) as registry:
            kind = registry.get(kind)
    if not (isinstance(kind, type) and issubclass(kind, BaseDataset)):
        return DATASETS.build(config)
    dataset: Any = DATASETS.build({**config, 'lazy_init': True})
    if problem := check_reduce_zero_label(dataset, config.get('pipeline')):
        raise DataError(str(problem))
    _load_annotations(dataset)
    rules = LabelRules.of(dataset) if hasattr(dataset, 'reduce_zero_label') else None
    dataset.pipeline = GuardedPipeline(dataset.pipeline.transforms, rules)
    return dataset


def _load_annotations(dataset: Any) -> None:
    """Load the annotations of a dataset; errors name their file."""

    def filter_data() -> list[dict]:
        kept = type(dataset).filter_data(dataset)
        if not kept:  # then mmengine fails without a reason
            raise DataError(str(explain_empty(dataset, len(dataset.data_list))))
        return kept

    dataset.filter_data = filter_data
    if hasattr(dataset, 'COCOAPI'):
        dataset.COCOAPI = _checked_api(dataset)
    try:
        dataset.full_init()
    except DataError:
        raise
    except Exception as error:  # a reader may raise anything on a file in the wrong format
        file = getattr(dataset, 'ann_file', '') or getattr(dataset, 'data_prefix', '')
        raise DataError(f'{file}: {type(error).__name__}: {error}. {HINT}') from error
    for name in ('filter_data', 'COCOAPI'):  # other processes could not load these
        vars(dataset).pop(name, None)


def _checked_api(dataset: Any) -> type:
    """Return the class with which mmdet's datasets read COCO's format, with checks."""
    file, classes = dataset.ann_file, dataset.metainfo.get('classes') or ()

    class Checked(dataset.COCOAPI):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # pycocotools prints four lines per file.
            with contextlib.redirect_stdout(io.StringIO()):
                super().__init__(*args, **kwargs)

        def createIndex(self) -> None:
            for problem in check_coco(self.dataset, file, classes):
                if problem.kind in STOPPING:
                    raise DataError(f'{problem}. {HINT}')
            super().createIndex()

    return Checked


class GuardedPipeline(Compose):
    """A pipeline whose errors name the image. It checks the labels of each file once.

    Args:
        transforms (list): The built transforms of another pipeline.
        rules (LabelRules, optional): What a segmentor's labels may be.
    """

    def __init__(self, transforms: list, rules: LabelRules | None = None) -> None:
        super().__init__(transforms)
        self.rules = rules
        self.checked: set[str] = set()

    def __call__(self, data: dict) -> dict | None:
        names = [data[key] for key in ('img_path', 'seg_map_path') if data.get(key)]
        for transform in self.transforms:
            try:
                data = transform(data)
            except Exception as error:  # a decoder may raise anything on a damaged file
                raise DataError(
                    f'{" and ".join(names)}: {type(transform).__name__} failed: '
                    f'{type(error).__name__}: {" ".join(str(error).split())}. {HINT}'
                ) from error
            if data is None:
                return None
            if self.rules and 'gt_seg_map' in data:
                self._check_labels(data, self.rules)
        return data

    def _check_labels(self, data: dict, rules: LabelRules) -> None:
        path = data.get('seg_map_path', '')
        if path in self.checked:
            return
        if problem := check_loaded_label(data['gt_seg_map'], path, rules, data['ori_shape'][:2]):
            raise DataError(f'{problem}. {HINT}')
        self.checked.add(path)
