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

from .check import DataError
from .check.coco import STOPPING, check_coco
from .check.empty import empty
from .check.labels import Labels, contradiction, wrong_labels

HINT = 'tools/check_dataset.py finds all such files.'


def guarded(config: dict) -> dict:
    """A config that mmengine builds with :func:`build_guarded`."""
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
    problem = contradiction(dataset, config.get('pipeline'))
    if problem:
        raise DataError(str(problem))
    return dataset


@functools.cache
def guarded_class(kind: type) -> type:
    """A subclass of a dataset's class, under the same name."""
    return type(kind.__name__, (GuardedDataset, kind), {})


class GuardedDataset(BaseDataset):
    """Raises a :class:`DataError` where a dataset fails; :func:`guarded_class` mixes it in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        labels = None
        with contextlib.suppress(ImportError):
            from mmseg.datasets import BaseSegDataset

            if isinstance(self, BaseSegDataset):
                labels = Labels.of(self)
        pipeline: Any = self.pipeline  # type: ignore[has-type]
        self.pipeline = GuardedPipeline(pipeline.transforms, labels)

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
        """As in the dataset; mmengine fails without a reason if nothing is left."""
        kept = super().filter_data()
        if not kept:
            raise DataError(str(empty(self, len(self.data_list))))
        return kept

    @property
    def COCOAPI(self) -> type:
        """The class with which mmdet's datasets read COCO's format, with checks."""
        file, classes = self.ann_file, self.metainfo.get('classes')

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
    """A pipeline whose errors name the image.

    Args:
        transforms (list): The built transforms of another pipeline.
        labels (Labels, optional): What a segmentor's labels may be.
    """

    def __init__(self, transforms: list, labels: Labels | None = None) -> None:
        super().__init__(transforms)
        self.labels = labels

    def __call__(self, data: dict) -> dict | None:
        names = [data[key] for key in ('img_path', 'seg_map_path') if data.get(key)]
        for transform in self.transforms:
            unlabeled = 'gt_seg_map' not in data
            try:
                data = transform(data)
            except Exception as error:  # a decoder may raise anything on a damaged file
                raise DataError(
                    f'{" and ".join(names)}: {type(transform).__name__} failed: '
                    f'{type(error).__name__}: {" ".join(str(error).split())}. {HINT}'
                ) from error
            if data is None:
                return None
            if self.labels and unlabeled and 'gt_seg_map' in data:
                check_loaded_labels(data, self.labels)
        return data


def check_loaded_labels(data: dict, allowed: Labels) -> None:
    """Raise if the labels in a pipeline's data are not allowed."""
    path, size = data['seg_map_path'], data['ori_shape'][:2]
    problem = wrong_labels(data['gt_seg_map'], path, allowed, size)
    if problem:
        raise DataError(f'{problem}. {HINT}')
