"""``xcit-mm convert-data``: convert a folder of annotated images to COCO's format."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from .options import add_flag, add_source_options

if TYPE_CHECKING:
    from xcit_mm.datasets.convert import Converted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Convert a folder in the format of Pascal VOC, YOLO or labelme, or of masks that are files '
        "or numbers, to COCO's, one file per split, and list what is wrong with it. Exit status: 0 "
        'if everything was converted, 1 if something '
        'had to be left out, 2 if nothing could be converted.'
    )
    parser.add_argument('folder', type=Path, help='a folder with images and annotations')
    parser.add_argument('--out', type=Path, help='where SPLIT.json files go (default: FOLDER/coco)')
    add_source_options(parser, 'classes in this order; others are left out (default: all)')
    parser.add_argument(
        '--splits',
        nargs='+',
        choices=('train', 'val', 'test', 'trainval'),
        help='splits to convert (default: all that the folder has)',
    )
    parser.add_argument('--json', metavar='FILE', help='write all problems to a JSON file')
    add_flag(parser, '--force', 'overwrite earlier files')


def run(args: argparse.Namespace) -> int:
    from xcit_mm.datasets.convert import convert_folder
    from xcit_mm_runtime.files import write_atomically

    from .common import check_output

    check_output(args.json, args.force)
    converted = convert_folder(
        args.folder,
        args.out or args.folder / 'coco',
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
    from xcit_mm.tables import format_table

    report = converted.report
    print(f'Found: {converted.title}.\n')
    if report.problems:
        print(report.describe() + '\n')
    print(format_table(converted.rows) + '\n')
    print('\n'.join(f'{split}: {path}' for split, path in converted.files.items()))
    print(f'{report.errors} left out, {len(report.problems) - report.errors} notes')


def _settings(converted: Converted, folder: Path) -> str:
    """Return the lines of a config that read the files."""
    from xcit_mm.datasets.folders import relative_to

    lines = ['In a config:', f'  data_root = {f"{folder}/"!r}']
    for split, path in converted.files.items():
        name = relative_to(path, folder)
        lines.append(f"  {split}: ann_file='{name}', data_prefix=dict(img='')")
    return '\n'.join([*lines, f'  metainfo = dict(classes={tuple(converted.classes)})'])
