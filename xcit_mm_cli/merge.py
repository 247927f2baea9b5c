"""``xcit-mm merge``: put together what several processes of ``infer`` have found."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .options import add_flag

if TYPE_CHECKING:
    from xcit_mm.inference.shards import InferenceJob


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Put together what several processes of "xcit-mm infer", or Ray, have found. Writes the '
        'files that one process would have written, checks that every image is done, and lists '
        'those that were skipped. Then deletes the shards, if nothing is missing or skipped. Exit '
        'status: 0 if every image was used, 1 if some were skipped, 2 if some are missing.'
    )
    parser.add_argument('out_dir', metavar='OUT_DIR', help='the --out-dir of infer')
    add_flag(
        parser, '--allow-missing', 'merge what is there, with exit status 1, and keep the shards'
    )


def run(args: argparse.Namespace) -> int:
    from xcit_mm.errors import UserError
    from xcit_mm.inference import merge
    from xcit_mm.inference.shards import FOLDER, Records, delete_shards

    out_dir = Path(args.out_dir)
    records = Records(out_dir)
    job, missing, skipped = records.job, records.count_left(), len(records.skipped)
    if missing and not args.allow_missing:
        raise UserError(
            f'{missing} of {job.inputs} inputs are missing. Start the infer command again: it does '
            'only what is missing. --allow-missing merges what is there.'
        )
    merge(records, out_dir)
    print_results(job, out_dir, records.list_skipped(), job.inputs - missing - skipped)
    if not missing and not skipped:
        delete_shards(out_dir)
        return 0
    print(
        f'{missing} missing, {skipped} skipped. {out_dir / FOLDER} is kept: infer '
        f'{"does only what is missing" if missing else "--retry-skipped tries again what was"}'
    )
    return 1


def print_results(
    job: InferenceJob, out_dir: Path, skipped: Iterable[tuple[str, str]], done: int
) -> None:
    """Print what an inference has skipped, and where its results are.

    Args:
        job (InferenceJob): The inference.
        out_dir (Path): The folder for results.
        skipped (Iterable[tuple[str, str]]): Files that could not be used, with the reason.
        done (int): How many inputs could be used.
    """
    from xcit_mm_runtime.coco import RESULTS
    from xcit_mm_runtime.predict import results_path

    from .common import printable

    for file, reason in skipped:
        print(f'skipped, {printable(reason)}: {printable(file)}')
    what = 'images' if job.images == job.inputs else 'inputs'
    print(f'{done} of {job.inputs} {what}')
    if not job.images:
        return
    print(f'predictions: {results_path(job.task, out_dir)}')
    if job.task != 'detection':
        return
    if not job.annotated:
        print('Images have numbers of our own. To score them, give annotations with --ann-file.')
    for name in RESULTS.values():
        if (out_dir / name).exists():
            print(f'for pycocotools: {out_dir / name}')
