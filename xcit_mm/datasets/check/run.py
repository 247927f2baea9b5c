"""Checks datasets as a config defines them: every image, every annotation, every label."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mmengine.registry import DATASETS
from rich.console import Console
from rich.progress import Progress

from .coco import STOPPING, check_coco, count_used, read_coco
from .empty import empty, unlabeled
from .images import check_image, large_images
from .labels import Labels, check_label, contradiction, never_used
from .problems import CHANGED, ERRORS, LEFT_OUT, NOTES, Problem

EXAMPLES = 3
T = TypeVar('T')


@dataclass
class Report:
    """What was checked, and the problems that were found."""

    images: int = 0
    splits: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def errors(self) -> int:
        return sum(problem.is_error for problem in self.problems)

    def rows(self) -> list[dict[str, Any]]:
        """Rows of a table: one per kind of problem, errors first."""
        found: dict[str, list[Problem]] = {}
        for problem in self.problems:
            found.setdefault(problem.kind, []).append(problem)
        return [
            {
                'problem': kind,
                'severity': severity,
                'count': len(found[kind]),
                'what happens': text,
            }
            for severity, kinds in (('error', ERRORS | LEFT_OUT), ('note', NOTES | CHANGED))
            for kind, text in kinds.items()
            if kind in found
        ]

    def examples(self) -> Iterator[str]:
        """The first files of each kind of problem."""
        for row in self.rows():
            same = [problem for problem in self.problems if problem.kind == row['problem']]
            yield f'{row["problem"]}:'
            yield from (f'  {problem}' for problem in same[:EXAMPLES])
            if len(same) > EXAMPLES:
                yield f'  and {len(same) - EXAMPLES} more'

    def to_json(self) -> str:
        """All problems, for other programs."""
        problems = [
            {
                'problem': problem.kind,
                'severity': 'error' if problem.is_error else 'note',
                'file': problem.file,
                'detail': problem.detail,
            }
            for problem in self.problems
        ]
        content = {'splits': self.splits, 'images': self.images, 'problems': problems}
        return json.dumps(content, indent=1) + '\n'


class Plan(NamedTuple):
    """How to check a dataset.

    Args:
        problems (list[Problem]): Those of the annotations as a whole.
        jobs (list): One per image, which returns its problems.
        finish (callable): Returns the problems that show after all jobs.
    """

    problems: list[Problem]
    jobs: Sequence[Callable[[], list[Problem]]] = ()
    finish: Callable[[], list[Problem]] = list


def find_problems(datasets: dict[str, list[dict]], workers: int) -> Report:
    """Check datasets.

    Args:
        datasets (dict[str, list[dict]]): The innermost datasets of a config, by split.
        workers (int): Threads that decode images.

    Raises:
        TypeError: If a dataset is neither in COCO's format nor of label PNGs.
    """
    report, seen = Report(splits=list(datasets)), set()
    with large_images(), Progress(console=Console(stderr=True)) as progress:
        for split, configs in datasets.items():
            for config in configs:
                dataset, masks = build(config), loads_masks(config.get('pipeline', ()))
                key = (str(dataset.ann_file), str(dataset.data_prefix), masks)
                if key in seen:
                    continue
                seen.add(key)
                wrong = contradiction(dataset, config.get('pipeline'))
                if wrong:
                    report.problems.append(wrong)
                    continue
                problems, jobs, finish = plan(dataset, masks)
                report.problems += problems
                report.images += len(jobs)
                task = progress.add_task(split, total=len(jobs))
                for found in in_threads(jobs, workers):
                    report.problems += found
                    progress.advance(task)
                report.problems += finish()
    return report


def in_threads(jobs: Iterable[Callable[[], T]], workers: int) -> Iterator[T]:
    """Run jobs in threads, since decoders release the GIL. Results keep their order."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda job: job(), jobs)


def build(config: dict) -> Any:
    """The dataset of a config, with its paths and classes, without its content."""
    return DATASETS.build({**config, 'lazy_init': True, 'pipeline': []})


def loads_masks(pipeline: Iterable[dict]) -> bool:
    return any(step.get('with_mask', False) for step in pipeline)


def plan(dataset: Any, masks: bool) -> Plan:
    """What to do for a dataset."""
    with contextlib.suppress(ImportError):
        from mmdet.datasets import CocoDataset

        if isinstance(dataset, CocoDataset):
            return plan_coco(dataset, masks)
    with contextlib.suppress(ImportError):
        from mmseg.datasets import BaseSegDataset

        if isinstance(dataset, BaseSegDataset):
            return plan_labels(dataset)
    from ...pretraining import CocoObjects, LabeledFolder, UnlabeledFolder

    if isinstance(dataset, (CocoObjects, LabeledFolder, UnlabeledFolder)):
        return plan_images(dataset)
    raise TypeError(
        f'{type(dataset).__name__} is neither a CocoDataset, nor a BaseSegDataset, nor a folder of '
        'images'
    )


def plan_images(dataset: Any) -> Plan:
    paths = dict.fromkeys(info['img_path'] for info in dataset.load_data_list())

    def job(path: str) -> Callable[[], list[Problem]]:
        return lambda: check_image(path)[0]

    # No decoder of images reads arrays.
    return Plan([], [job(path) for path in paths if not path.lower().endswith('.npy')])


def plan_coco(dataset: Any, masks: bool) -> Plan:
    content = read_coco(dataset.ann_file)
    if isinstance(content, Problem):
        return Plan([content])
    problems = list(check_coco(content, dataset.ann_file, dataset.metainfo['classes'], masks))
    readable = not any(problem.kind in STOPPING for problem in problems)
    if readable and not count_used(content, dataset):
        problems.append(empty(dataset, len(content['images'])))
    folder = Path(dataset.data_prefix['img'])

    def job(image: dict) -> Callable[[], list[Problem]]:
        size = (image['width'], image['height']) if {'width', 'height'} <= image.keys() else None
        return lambda: check_image(str(folder / image['file_name']), size)[0]

    return Plan(problems, [job(image) for image in content['images'] if 'file_name' in image])


def plan_labels(dataset: Any) -> Plan:
    infos = dataset.load_data_list()
    if not infos:
        return Plan([empty(dataset)])
    if problem := unlabeled(dataset, infos):
        return Plan([problem])
    allowed, values = Labels.of(dataset), np.zeros(256, bool)

    def job(info: dict) -> Callable[[], list[Problem]]:
        def check() -> list[Problem]:
            problems, size = check_image(info['img_path'])
            if size is not None and 'seg_map_path' in info:
                problems += check_label(info, allowed, size, values)
            return problems

        return check

    finish = functools.partial(never_used, dataset, values)
    return Plan(labels_alone(dataset, infos), [job(info) for info in infos], finish)


def labels_alone(dataset: Any, infos: list[dict]) -> list[Problem]:
    """Labels without an image. A list of names may leave out some on purpose."""
    folder, suffix = dataset.data_prefix.get('seg_map_path'), dataset.seg_map_suffix
    if not folder or dataset.ann_file:
        return []
    suffixes = tuple(s.lower() for s in ([suffix] if isinstance(suffix, str) else suffix))
    used = {Path(info[key]) for info in infos for key in ('img_path', 'seg_map_path')}
    there = [path for path in Path(folder).rglob('*') if path.name.lower().endswith(suffixes)]
    return [Problem('label: without image', str(p)) for p in sorted(there) if p not in used]
