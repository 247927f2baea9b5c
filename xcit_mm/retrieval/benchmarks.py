"""Benchmarks of retrieval: Revisited Oxford (and Paris), Holidays, mean average precision."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcit_mm_runtime.inputs import find_images

from ..errors import UserError
from ..weights.unpickler import SafeUnpickler

# Of Revisited Oxford: what a query should find, and what is ignored as if it were not there.
PROTOCOLS = {'medium': (('easy', 'hard'), ('junk',)), 'hard': (('hard',), ('junk', 'easy'))}
HOLIDAYS_NAME = re.compile(r'\d{6}')
# Numbers of the images that a query should find, and of those that are ignored.
Answer = tuple[Sequence[int], Sequence[int]]


class Benchmark(NamedTuple):
    """Images, queries (an image, and the box in it or None), and their answers by protocol."""

    images: list[Path]
    queries: list[tuple[Path, Sequence[float] | None]]
    answers: Mapping[str, Sequence[Answer]]


def average_precision(scores: np.ndarray, relevant: Sequence[int], junk: Sequence[int]) -> float:
    """Return the area under precision over recall by trapezoids, as both benchmarks measure it.

    Args:
        scores (np.ndarray): Those of all images, (n,).
        relevant (Sequence[int]): The images to find. If there are none, the result is NaN.
        junk (Sequence[int]): The images that are ignored.
    """
    order = np.argsort(-scores, kind='stable')
    order = order[~np.isin(order, junk)]
    ranks = np.flatnonzero(np.isin(order, relevant))
    found = np.arange(len(ranks))
    # Precision just before and just after each image that is found.
    before = np.where(ranks == 0, 1.0, found / np.maximum(ranks, 1))
    after = (found + 1) / (ranks + 1)
    return float((before + after).sum() / 2 / len(relevant)) if len(relevant) else np.nan


def mean_average_precision(scores: np.ndarray, answers: Sequence[Answer]) -> float:
    """Return mAP in percent, of scores (queries, images), over queries with something to find."""
    values = [average_precision(row, *answer) for row, answer in zip(scores, answers, strict=True)]
    return 100 * float(np.nanmean(values))


def find_benchmark(folder: str) -> Benchmark:
    """Find images, queries and answers in a folder.

    Args:
        folder (str): It has images at any depth, and a ``gnd_NAME.json`` or ``gnd_NAME.pkl`` as
            Revisited Oxford has; or the images are named as those of Holidays are.
    """
    images = find_images([folder])
    for path in (*Path(folder).rglob('gnd_*.json'), *Path(folder).rglob('gnd_*.pkl')):
        return _read_revisited(path, {image.stem: image for image in images})
    # 123400 is a query, and should find 123401, 123402, ...
    images = [path for path in images if HOLIDAYS_NAME.fullmatch(path.stem)]
    groups: dict[str, list[int]] = {}
    for number, path in enumerate(images):
        groups.setdefault(path.stem[:4], []).append(number)
    queries = [number for number, path in enumerate(images) if path.stem.endswith('00')]
    if not queries:
        raise UserError(
            f'{folder} is not a benchmark: it has neither a ground truth such as gnd_roxford5k.pkl '
            'nor images named as in Holidays, where 100000.jpg should find 100001.jpg.'
        )
    answers = [([i for i in groups[images[q].stem[:4]] if i != q], [q]) for q in queries]
    return Benchmark(images, [(images[q], None) for q in queries], {'mAP': answers})


def _read_revisited(path: Path, images: dict[str, Path]) -> Benchmark:
    try:
        with path.open('rb') as file:
            pickled = SafeUnpickler(file, path.stat().st_size, 'cpu')
            content: Any = json.load(file) if path.suffix == '.json' else pickled.load()
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise UserError(
            f'{path} cannot be read without running code that it may contain ({error}). If you '
            'trust it, convert it to JSON as docs/retrieval.md shows.'
        ) from None
    try:
        truth = content['gnd']
        boxes = [answer.get('bbx') for answer in truth]
        return Benchmark(
            [images[name] for name in content['imlist']],
            list(zip([images[name] for name in content['qimlist']], boxes, strict=True)),
            {
                name: [(_numbers(answer, good), _numbers(answer, junk)) for answer in truth]
                for name, (good, junk) in PROTOCOLS.items()
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f'{path}: an image is missing, or it is no ground truth: {error!r}.'
        ) from None


def _numbers(answer: Mapping[str, Sequence[Any]], keys: Sequence[str]) -> list[int]:
    return [int(number) for key in keys for number in answer[key]]
