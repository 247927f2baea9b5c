"""Put together what several processes of ``infer`` have found."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from xcit_mm.errors import UserError
from xcit_mm.inference import merge
from xcit_mm.inference.shards import FOLDER, InferenceJob, Records, delete_shards
from xcit_mm_runtime.coco import RESULTS
from xcit_mm_runtime.predict import results_path

from .common import command, printable


def report(job: InferenceJob, out_dir: Path, skipped: Iterable[tuple[str, str]], done: int) -> None:
    """Say what an inference has skipped, and where its results are.

    Args:
        job (InferenceJob): The inference.
        out_dir (Path): The folder for results.
        skipped (Iterable[tuple[str, str]]): Files that could not be used, with the reason.
        done (int): How many inputs could be used.
    """
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


@command('merge')
def main(args: argparse.Namespace) -> int:
    out_dir = Path(args.out_dir)
    records = Records(out_dir)
    job, missing, skipped = records.job, records.count_left(), len(records.skipped)
    if missing and not args.allow_missing:
        raise UserError(
            f'{missing} of {job.inputs} inputs are missing. Start the infer command again, with '
            'any number of processes: it does only what is missing. --allow-missing merges what '
            'is there.'
        )
    merge(records, out_dir)
    report(job, out_dir, records.list_skipped(), job.inputs - missing - skipped)
    if not missing and not skipped:
        delete_shards(out_dir)
        return 0
    print(
        f'{missing} missing, {skipped} skipped. {out_dir / FOLDER} is kept: infer '
        f'{"does only what is missing" if missing else "--retry-skipped tries again what was"}'
    )
    return 1
