"""Tests the published weights on the data of this machine, next to the paper's results."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xcit_mm_runtime.files import write_atomically
from xcit_mm_runtime.model import first_line

from .datasets.present import check_datasets
from .engine.config import load_config
from .engine.testing import difference
from .errors import UserError
from .paper import PaperTest, paper_tests
from .tables import best_value, format_table
from .weights.sources import locate

# How the reason of a test begins that was started and failed; all others were not started.
FAILED = '"xcit-mm test" ended with status'


def choose_tests(benchmark: str, names: Sequence[str] = ()) -> list[PaperTest]:
    """Return the tests of a benchmark.

    Args:
        benchmark (str): ``coco``, ``ade20k``, ``imagenet`` or ``dino``.
        names (Sequence[str]): Short names or parts of them, to choose some. Defaults to all.
    """
    tests = [test for test in paper_tests() if test.benchmark == benchmark]
    chosen = [] if names else tests
    for name in names:
        short = name.removeprefix('xcit://')
        exact = [test for test in tests if test.weights == short]
        found = exact or [test for test in tests if short in test.weights]
        if not found:
            known = ', '.join(dict.fromkeys(test.weights for test in tests))
            raise UserError(f'--weights {name}: the published weights of {benchmark} are {known}.')
        chosen += [test for test in found if test not in chosen]
    return chosen


def verify(
    tests: Sequence[PaperTest], work_dir: Path, options: Sequence[str] = ()
) -> Iterator[list[dict[str, Any]]]:
    """Run tests one after another, each as ``xcit-mm test``, and yield the rows of each.

    Args:
        tests (Sequence[PaperTest]): The tests.
        work_dir (Path): Where logs and metrics go.
        options (Sequence[str]): ``--cfg-options`` for all of them. Defaults to none.

    Yields:
        list[dict]: A row for each metric: ``weights``, ``data``, ``metric``, ``measured``,
        ``paper`` and ``difference`` in percent, and ``skipped``, the reason if there is one.
    """
    for number, test in enumerate(tests, 1):
        print(f'[{number} of {len(tests)}] xcit://{test.weights}, {test.data}', flush=True)
        folder = work_dir / Path(test.config).with_suffix('')
        metrics, reason = _run(test, folder, options)
        if reason:
            print(f'skipped: {reason}', flush=True)
        yield [_row(test, name, metrics.get(name), reason) for name in test.metrics]


def _row(test: PaperTest, name: str, measured: float | None, reason: str) -> dict[str, Any]:
    scale = 100 / best_value(name)
    percent = None if measured is None else round(scale * measured, 3)
    paper = round(scale * test.metrics[name], 3)
    return {
        'weights': f'xcit://{test.weights}',
        'data': test.data,
        'metric': name,
        'measured': percent,
        'paper': paper,
        'difference': difference(percent, paper),
        'skipped': reason,
    }


def _run(test: PaperTest, folder: Path, options: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the metrics of a test, or why there are none."""
    config, checkpoint = f'xcit_mm::{test.config}', f'xcit://{test.weights}'
    try:
        cfg = load_config(config, options)
        check_datasets(cfg, ('test_dataloader',), draw=False)
        # Here, so that a failed download is told from a failed test.
        for source in (checkpoint, cfg.model.get('linear_weights')):
            if source is not None:
                locate(source)
    except (UserError, OSError) as error:
        return {}, first_line(error).partition('. ')[0]
    result = folder / 'metrics.json'
    command = ['test', config, checkpoint, '--json', str(result), '--force']
    command += ['--work-dir', str(folder)]
    command += ['--cfg-options', *options] if options else []
    print(shlex.join(['xcit-mm', *command]), flush=True)
    status = subprocess.run([sys.executable, '-m', 'xcit_mm_cli', *command]).returncode
    if status:
        return {}, f'{FAILED} {status}; its log is in {folder}'
    return json.loads(result.read_text(encoding='utf-8')), ''


def write_results(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write results as a table in Markdown, and as JSON.

    Args:
        rows (Sequence[dict]): What :func:`verify` yielded.
        path (Path): Of the Markdown file; the other one ends in ``.json``.
    """
    write_atomically(path.with_suffix('.json'), json.dumps(rows, indent=1) + '\n')
    columns = [name for name in rows[0] if name != 'skipped']
    measured = [{name: row[name] for name in columns} for row in rows if not row['skipped']]
    parts = ['# Published weights, measured here and in the paper (arXiv 2106.09681), in percent']
    if measured:
        parts.append(format_table(measured, 'markdown'))
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row['skipped']:
            names = reasons.setdefault(row['skipped'], [])
            names += [row['weights']] if row['weights'] not in names else []
    parts += [f'Skipped ({reason}): {", ".join(names)}.' for reason, names in reasons.items()]
    write_atomically(path, '\n\n'.join(parts) + '\n')
