"""Datasets whose errors name the faulty file.

mmdet and mmseg skip some faults; :mod:`.check` lists them. Others raise an error that names no file
(an image of zero bytes), fail much later (labels out of range, on CUDA with a device assertion), or
go unnoticed (labels of another size, two images with the same id).
"""

import contextlib
import functools
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
    """Build a dataset, or a wrapper of datasets, guarded.

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
    if isinstance(kind, type) and issubclass(kind, BaseDataset):
        config = {**config, 'type': guarded_class(kind)}
    dataset = DATASETS.build(config)
    if problem := check_reduce_zero_label(dataset, config.get('pipeline')):
        raise DataError(str(problem))
    return dataset


@functools.cache
def guarded_class(kind: type) -> type:
    """Return a subclass of a dataset's class, under the same name."""
    return type(kind.__name__, (GuardedDataset, kind), {})


class GuardedDataset(BaseDataset):
    """Raises a :class:`DataError` where a dataset fails; :func:`guarded_class` mixes it in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rules = LabelRules.of(self) if hasattr(self, 'reduce_zero_label') else None
        pipeline: Any = self.pipeline  # type: ignore[has-type]
        self.pipeline = GuardedPipeline(pipeline.transforms, rules)

    def __reduce__(self) -> tuple:
        # The class is created at run time, so another process must create it again.
        return _restore, (type(self).__bases__[1], vars(self))

    def full_init(self) -> None:
        """Load the annotations."""
        try:
            super().full_init()
        except DataError:
            raise
        except Exception as error:  # a reader may raise anything on a file in the wrong format
            file = getattr(self, 'ann_file', '') or getattr(self, 'data_prefix', '')
            raise DataError(f'{file}: {type(error).__name__}: {error}. {HINT}') from error

    def filter_data(self) -> list[dict]:
        """Filter as the dataset does; mmengine fails without a reason if nothing is left."""
        kept = super().filter_data()
        if not kept:
            raise DataError(str(explain_empty(self, len(self.data_list))))
        return kept

    @property
    def COCOAPI(self) -> type:
        """The class with which mmdet's datasets read COCO's format, with checks."""
        file, classes = self.ann_file, self.metainfo.get('classes') or ()

        class Checked(super().COCOAPI):  # type: ignore[misc]
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


def _restore(kind: type, state: dict) -> Any:
    dataset: Any = object.__new__(guarded_class(kind))
    vars(dataset).update(state)
    return dataset


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
