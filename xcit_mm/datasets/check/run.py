"""Checks data sets as a config defines them: every image, every annotation, every label."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.registry import DATASETS
from rich.console import Console
from rich.progress import Progress

from .coco import check_coco, read_coco
from .images import check_image, large_images
from .labels import Labels, check_label
from .problems import ERRORS, NOTES, Problem

EXAMPLES = 3


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
            for severity, kinds in (('error', ERRORS), ('note', NOTES))
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


def find_problems(datasets: dict[str, list[dict]], workers: int) -> Report:
    """Check data sets.

    Args:
        datasets (dict[str, list[dict]]): The innermost data sets of a config, by split.
        workers (int): Threads that decode images.

    Raises:
        TypeError: If a data set is neither in COCO's format nor of label PNGs.
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
                problems, jobs = plan(dataset, masks)
                report.problems += problems
                report.images += len(jobs)
                task = progress.add_task(split, total=len(jobs))
                for found in in_threads(jobs, workers):
                    report.problems += found
                    progress.advance(task)
    return report


def in_threads(jobs: Iterable[Callable], workers: int) -> Iterator[list[Problem]]:
    """Run jobs in threads, since decoders release the GIL. Results keep their order."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda job: job(), jobs)


def build(config: dict) -> Any:
    """The data set of a config, with its paths and classes, without its content."""
    return DATASETS.build({**config, 'lazy_init': True, 'pipeline': []})


def loads_masks(pipeline: Iterable[dict]) -> bool:
    return any(step.get('with_mask', False) for step in pipeline)


def plan(dataset: Any, masks: bool) -> tuple[list[Problem], list[Callable[[], list[Problem]]]]:
    """The problems of the annotations as a whole, and one job per image."""
    with contextlib.suppress(ImportError):
        from mmdet.datasets import CocoDataset

        if isinstance(dataset, CocoDataset):
            return plan_coco(dataset, masks)
    with contextlib.suppress(ImportError):
        from mmseg.datasets import BaseSegDataset

        if isinstance(dataset, BaseSegDataset):
            return plan_labels(dataset)
    raise TypeError(f'{type(dataset).__name__} is neither a CocoDataset nor a BaseSegDataset')


def plan_coco(dataset: Any, masks: bool) -> tuple[list[Problem], list]:
    content = read_coco(dataset.ann_file)
    if isinstance(content, Problem):
        return [content], []
    problems = list(check_coco(content, dataset.ann_file, dataset.metainfo['classes'], masks))
    folder = Path(dataset.data_prefix['img'])

    def job(image: dict) -> Callable[[], list[Problem]]:
        size = (image['width'], image['height']) if {'width', 'height'} <= image.keys() else None
        return lambda: check_image(str(folder / image['file_name']), size)[0]

    return problems, [job(image) for image in content['images'] if 'file_name' in image]


def plan_labels(dataset: Any) -> tuple[list[Problem], list]:
    infos = dataset.load_data_list()
    used = {Path(info['seg_map_path']) for info in infos if 'seg_map_path' in info}
    folder = Path(dataset.data_prefix.get('seg_map_path') or '')
    there = sorted(folder.rglob(f'*{dataset.seg_map_suffix}')) if used else []
    allowed = Labels.of(dataset)
    alone = [Problem('label: without image', str(path)) for path in there if path not in used]

    def job(info: dict) -> Callable[[], list[Problem]]:
        def check() -> list[Problem]:
            problems, size = check_image(info['img_path'])
            if size is not None and 'seg_map_path' in info:
                problems += check_label(info, allowed, size)
            return problems

        return check

    return alone, [job(info) for info in infos]
