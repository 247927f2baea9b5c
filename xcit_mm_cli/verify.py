"""``xcit-mm verify``: test the published weights, next to the paper's results."""

import argparse

from .options import add_cfg_options, add_flag

BENCHMARKS = {
    'coco': 'box and mask AP of 8 detectors',
    'ade20k': 'mIoU of 16 segmentors',
    'imagenet': 'top-1 accuracy of 42 classifiers, and of 12 on ImageNet-V2',
    'dino': 'k-NN and linear accuracy of 4 backbones',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Test the published weights on the data of this machine, and write one table with what was '
        "measured, the paper's results and the difference. Tests whose data or weights are missing "
        'are skipped, and the table says why. One process runs one test after another. Exit status '
        '1 if a test failed, 2 if nothing was measured.'
    )
    listed = '; '.join(f'{name}: {text}' for name, text in BENCHMARKS.items())
    parser.add_argument('benchmark', choices=BENCHMARKS, help=listed)
    parser.add_argument(
        '--weights',
        nargs='+',
        default=[],
        metavar='NAME',
        help='test only these weights: short names or parts of them, such as s12/8 (default: all)',
    )
    parser.add_argument(
        '--out',
        metavar='FILE.md',
        help='the table in Markdown; a JSON file of the same name is written next to it (default: '
        'work_dirs/verify/BENCHMARK.md)',
    )
    add_flag(parser, '--force', 'overwrite --out')
    add_cfg_options(parser)


def find_conflict(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments."""
    if args.out and not args.out.endswith('.md'):
        return f'--out must end in .md, not {args.out}'
    return None


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from xcit_mm.tables import format_table
    from xcit_mm.verify import FAILED, choose_tests, verify, write_results

    from .common import check_output

    tests = choose_tests(args.benchmark, args.weights)
    work_dir = Path('work_dirs', 'verify')
    out = Path(args.out or work_dir / f'{args.benchmark}.md')
    # The default is ours to overwrite.
    for path in (out, out.with_suffix('.json')):
        check_output(path, args.force or not args.out)
    rows = []
    for found in verify(tests, work_dir, args.cfg_options or []):
        rows += found
        write_results(rows, out)  # after each: what is done survives an interruption
    print('\n' + format_table(rows))
    measured = sum(row['measured'] is not None for row in rows)
    failed = sum(row['skipped'].startswith(FAILED) for row in rows)
    print(f'{measured} of {len(rows)} results measured, {failed} failed, all others skipped.')
    print(f'table: {out}\nnumbers: {out.with_suffix(".json")}')
    return 1 if failed else 0 if measured else 2
