"""Convert a folder of annotated images to COCO's format."""

import argparse
import shlex
from pathlib import Path

from xcit_mm.datasets.convert import Converted, convert_folder
from xcit_mm.datasets.folders import relative_to
from xcit_mm.errors import UserError
from xcit_mm.tables import format_table
from xcit_mm_runtime.files import check_writable, write_atomically

from .common import command


@command('convert-data')
def main(args: argparse.Namespace) -> int:
    out = args.out or args.folder / 'coco'
    if args.json and Path(args.json).exists() and not args.force:
        raise UserError(f'{args.json} already exists; --force overwrites it.')
    if args.json:
        check_writable(args.json)
    converted = convert_folder(
        args.folder,
        out,
        kind=None if args.format == 'auto' else args.format,
        classes=args.classes,
        splits=args.splits,
        val_fraction=args.val_fraction,
        seed=args.seed,
        overwrite=args.force,
    )
    print_converted(converted)
    if args.json:
        write_atomically(args.json, converted.report.to_json())
        print(f'all problems: {args.json}')
    print(f'\n{_settings(converted, args.folder)}')
    words = ['xcit-mm', 'init', 'detection', '--data', str(args.folder)]
    words += ['--coco-dir', str(args.out)] if args.out else []
    print(f'\nNext, write a config that trains on them: {shlex.join(words)}')
    return 1 if converted.report.errors else 0


def print_converted(converted: Converted) -> None:
    """Print what was wrong, and what was written."""
    report = converted.report
    if report.problems:
        print(report.describe() + '\n')
    print(format_table(converted.rows) + '\n')
    print('\n'.join(f'{split}: {path}' for split, path in converted.files.items()))
    print(f'{report.errors} left out, {len(report.problems) - report.errors} notes')


def _settings(converted: Converted, folder: Path) -> str:
    """The lines of a config that read the files."""
    lines = ['In a config:', f'  data_root = {f"{folder}/"!r}']
    for split, path in converted.files.items():
        name = relative_to(path, folder)
        lines.append(f"  {split}: ann_file='{name}', data_prefix=dict(img='')")
    return '\n'.join([*lines, f'  metainfo = dict(classes={tuple(converted.classes)})'])
