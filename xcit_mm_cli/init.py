"""``xcit-mm init``: write a config for a folder of data."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .options import add_flag, add_source_options, minutes, positive

if TYPE_CHECKING:
    from mmengine.config import Config

    from xcit_mm.datasets.find import FoundData
    from xcit_mm.datasets.problems import CheckReport
    from xcit_mm.engine.pace import Pace
    from xcit_mm.starter import Choice, Schedule

ARCHS = ('n12', 't12', 't24', 's12', 's24', 'm24', 'l24')
# task -> its package
SCOPES = {'detection': 'mmdet', 'segmentation': 'mmseg'}
# The published weights of whole models, which fit one task only.
WHOLE = {'detection': 'coco/', 'segmentation': 'ade20k/sem_fpn/'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Look at a folder of data and write a config that trains on it. Detection takes the '
        'formats of COCO, Pascal VOC, YOLO and labelme, and masks that are files or numbers; '
        'segmentation takes folders of images and labels. '
        'Exit status: 0 if all of the data can be used, 1 if there are errors in it, 2 if no '
        'config could be written.'
    )
    parser.add_argument('task', choices=SCOPES)
    parser.add_argument('--data', type=Path, required=True, metavar='FOLDER', help='the data')
    parser.add_argument('--out', type=Path, help='the config to write (default: ./FOLDER.py)')
    parser.add_argument(
        '--arch',
        choices=ARCHS,
        help='size of the network (default: that of --weights, or n12 on a CPU and s12 on a GPU)',
    )
    parser.add_argument(
        '--patch-size',
        type=int,
        choices=(8, 16),
        help='8 sees smaller things and takes 4 times as long (default: that of --weights, or else '
        '16, and 8 to detect small objects)',
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        '--minutes',
        type=minutes,
        help='write a schedule that takes this long on this machine: measures a few iterations '
        '(default: a schedule by the numbers of images and objects)',
    )
    length.add_argument('--epochs', type=positive, help='write a schedule of so many epochs')
    start = parser.add_mutually_exclusive_group()
    start.add_argument('--scratch', action='store_true', help='train without pretrained weights')
    start.add_argument(
        '--weights',
        help='weights to start from: a path or xcit://NAME (default: those of ImageNet)',
    )
    parser.add_argument(
        '--void',
        nargs='+',
        type=int,
        default=[],
        metavar='LABEL',
        help='segmentation: labels to ignore, next to 255',
    )
    parser.add_argument(
        '--classes-from',
        type=int,
        choices=(0, 1),
        help='segmentation: the label of the first class; with 1, label 0 is ignored (default: 0, '
        'or 1 if no label is 0)',
    )
    parser.add_argument(
        '--coco-dir',
        type=Path,
        metavar='FOLDER',
        help='where converted annotations and lists of images go, for a folder that cannot be '
        'written (default: coco/ or splits/ in the folder)',
    )
    add_source_options(
        parser,
        'detection: classes to use, and their order if annotations are converted; COCO files keep '
        'theirs (default: all). Segmentation: names of all labels, in the order of their numbers',
    )
    add_flag(parser, '--force', 'overwrite the config')


def run(args: argparse.Namespace) -> int:
    from xcit_mm.datasets.find import explain_nothing_found
    from xcit_mm.errors import UserError
    from xcit_mm.starter import (
        describe_cost,
        describe_detector,
        describe_segmentor,
        detection_config,
        fit_detector,
        schedule,
        segmentation_config,
        with_epochs,
        within_minutes,
    )
    from xcit_mm.tables import format_table
    from xcit_mm_runtime.files import write_atomically

    from .common import check_output

    name = re.sub(r'\W+', '_', args.data.resolve().name) or 'data'
    out = args.out or Path(f'{name}.py')
    if out.suffix != '.py':
        raise UserError(f'{out} is not the name of a config: it must end in .py.')
    if not args.data.is_dir():
        raise UserError(f'There is no folder {args.data.absolute()}.')
    choice = choose(args)
    check_output(out, args.force, '--out chooses another')
    is_detection = args.task == 'detection'
    data, left_out = _find_objects(args) if is_detection else (_find_labels(args), 0)
    if data is None:
        raise UserError(explain_nothing_found(args.data, args.task))
    images, per_view = data.splits['train'].total, 1.0
    write: Callable[[Schedule], str]
    if is_detection:
        asked = choice.patch_size if args.patch_size or args.weights else None
        fit = fit_detector(data, choice.gpu, asked, choice.is_whole)
        choice, per_view = choose(args, fit.patch_size), fit.per_view
        write = partial(detection_config, data, choice, fit)
    else:
        write = partial(segmentation_config, data, choice)
    plan = schedule(args.task, images, choice, per_view)
    plan = with_epochs(plan, images, args.epochs) if args.epochs else plan
    cfg, report, rows = _check(write(plan), out.name, args.task)
    pace = _measure(cfg, report, args.minutes, data)
    if args.minutes is not None and pace is not None:
        plan = within_minutes(plan, data, args.minutes, pace)
    write_atomically(out, write(plan))
    if is_detection:
        choices = describe_detector(data, plan, fit)
    else:
        rows, choices = describe_segmentor(data, choice, plan)
    rows.append({'': 'training', 'data': '', 'config': describe_cost(data, plan, pace)})
    print(format_table(rows) + '\n')
    print('\n'.join(['Chosen from these figures:', *(f'  {line}' for line in choices), '']))
    _print(report, data, out, choice)
    return 1 if report.errors or left_out else 0


def choose(args: argparse.Namespace, patch_size: int = 16) -> Choice:
    """Choose the network and its weights: as asked, or what fits the machine and the patch size."""
    import torch

    from xcit_mm.errors import UserError
    from xcit_mm.starter import Choice
    from xcit_mm.weights import resolve_short_name

    gpu = torch.cuda.is_available()
    named = re.search(r'(?:^|/)([a-z]\d\d)/(8|16)(?:/|$)', args.weights or '')
    if args.weights and args.weights.startswith('xcit://'):
        short = args.weights.removeprefix('xcit://')
        try:
            resolve_short_name(short)
        except ValueError as error:
            raise UserError(str(error)) from None
        if short.startswith(('coco/', 'ade20k/')) and not short.startswith(WHOLE[args.task]):
            raise UserError(
                f'{args.weights} is no model for {args.task}; xcit://{WHOLE[args.task]}s12/16 is.'
            )
    arch = args.arch or (named[1] if named else ('s12' if gpu else 'n12'))
    patch_size = args.patch_size or (int(named[2]) if named else patch_size)
    if named and (arch, str(patch_size)) != named.groups():
        raise UserError(f'{args.weights} is for {named[1]}/{named[2]}, not {arch}/{patch_size}.')
    weights = None if args.scratch else args.weights or f'xcit://{arch}/{patch_size}'
    words = ['xcit-mm', 'init', args.task, '--data', str(args.data)]
    words += ['--classes', *args.classes] if args.classes else []
    if args.task == 'segmentation':
        words += ['--void', *map(str, args.void)] if args.void else []
        words += [] if args.classes_from is None else ['--classes-from', str(args.classes_from)]
    words += ['--scratch'] if args.scratch else ['--weights', args.weights] if args.weights else []
    return Choice(arch, patch_size, weights, gpu, shlex.join(words))


def _find_objects(args: argparse.Namespace) -> tuple[FoundData | None, int]:
    """Return the data, converted to COCO's format if needed, and how much that left out."""
    from xcit_mm.datasets.convert import convert_folder, find_format
    from xcit_mm.datasets.find import find_coco

    from .convert_data import print_converted

    coco_dir = args.coco_dir or args.data / 'coco'
    options = {'val_fraction': args.val_fraction, 'seed': args.seed}
    data, kind = None, args.format
    if args.format == 'auto':
        data = find_coco(args.data, coco_dir, args.classes, **options)
        kind = find_format(args.data)
    if data is not None and kind is not None and coco_dir.is_dir():
        where = f' --out {quote(args.coco_dir)}' if args.coco_dir else ''
        print(
            f'The annotations in {coco_dir} are used. If the data changed since they were written:'
        )
        print(f'  xcit-mm convert-data {quote(args.data)}{where} --force\n')
    if data is not None and args.classes and data.classes != args.classes:
        print(
            'The classes keep the order of the annotation file, in which mmdet numbers them, not '
            'that of --classes.\n'
        )
    if data is not None or kind is None:
        return data, 0
    converted = convert_folder(
        args.data, coco_dir, kind, args.classes, overwrite=args.force, **options
    )
    print_converted(converted)
    print()
    return find_coco(args.data, coco_dir), converted.report.errors


def _find_labels(args: argparse.Namespace) -> FoundData | None:
    from xcit_mm.datasets.find import find_labels

    return find_labels(
        args.data,
        args.coco_dir or args.data / 'splits',
        args.classes,
        args.void,
        args.classes_from,
        args.val_fraction,
        args.seed,
    )


def _check(text: str, name: str, task: str) -> tuple[Config, CheckReport, list[dict[str, str]]]:
    """Read a config, build what it names, and check the data as ``xcit-mm check`` does.

    Returns the config, what is wrong, and the rows of the table of objects.

    Args:
        text (str): The config, which has no file yet: one that does not work never gets its name.
        name (str): The name that it will have.
        task (str): ``detection`` or ``segmentation``.

    Raises:
        UserError: If the config does not work.
    """
    from mmengine.registry import MODELS, init_default_scope

    from xcit_mm.configs import innermost_datasets
    from xcit_mm.datasets.check.datasets import find_problems
    from xcit_mm.datasets.check.fit import FitReport
    from xcit_mm.datasets.guard import build_guarded
    from xcit_mm.engine.config import explaining_config, load_config
    from xcit_mm.errors import UserError

    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, name)
        draft.write_text(text, encoding='utf-8')
        try:
            cfg = load_config(str(draft))
        except UserError as error:
            raise UserError(str(error).replace(str(draft), name)) from error
    init_default_scope(SCOPES[task])
    loaders = {split: cfg.get(f'{split}_dataloader') for split in ('train', 'val', 'test')}
    datasets = {split: list(innermost_datasets(loader)) for split, loader in loaders.items()}
    with explaining_config(name):
        MODELS.build(cfg.model)
    report = find_problems(datasets)
    fit = FitReport(cfg, report.objects)
    report.problems += fit.problems(name)
    with explaining_config(name):
        for dataset in [] if report.errors else itertools.chain(*datasets.values()):
            build_guarded({**dataset, 'serialize_data': False})[0]
    return cfg, report, fit.rows()


def _measure(
    cfg: Config, report: CheckReport, minutes: float | None, data: FoundData
) -> Pace | None:
    """Measure the pace of a training; None if that is not possible and nobody asked for it."""
    from xcit_mm.engine.pace import QUICK_STEPS, STEPS, measure_pace
    from xcit_mm.errors import UserError
    from xcit_mm_runtime.model import first_line

    if report.errors and minutes is None:
        return None
    if report.errors:
        raise UserError(
            f'{report.describe()}\n\n--minutes runs a few iterations, and the data has errors: fix '
            'these first, or leave out --minutes.'
        )
    print('Measuring a few iterations ...\n', flush=True)
    try:
        objects = None if data.objects is None else float(data.objects.counts.mean())
        return measure_pace(cfg, QUICK_STEPS if minutes is None else STEPS, objects)
    except RuntimeError as error:  # out of memory; the training may run on another machine
        if minutes is not None:
            raise UserError(f'--minutes: an iteration fails here: {first_line(error)}') from error
        print(f'An iteration fails on this machine: {first_line(error)}\n')
        return None


def _print(report: CheckReport, data: FoundData, out: Path, choice: Choice) -> None:
    if report.problems:
        print(report.describe() + '\n')
    counts = ', '.join(f'{split.total} {name}' for name, split in data.splits.items())
    print(f'images: {counts}; median size {data.size[0]} x {data.size[1]}')
    noun = 'class' if len(data.classes) == 1 else 'classes'
    print(f'{len(data.classes)} {noun}: {", ".join(data.classes)}')
    if data.unused:
        print(f'left out, since they have no objects: {", ".join(data.unused)}')
    if data.maskless and data.objects is not None:
        print(
            f'{data.maskless} of {len(data.objects.boxes)} objects have no mask, so the config is '
            'for boxes. To train masks, too, give them one, or take them out.'
        )
    if data.bit_depth is not None:
        print(
            f'16-bit images: their values fit in {data.bit_depth} bits, so 0 to '
            f'{2**data.bit_depth - 1} becomes 0 to 255. If their range is another, change '
            f'bit_depth in the pipelines of {out}.'
        )
    if report.errors:
        print(f'{report.errors} errors in the data: fix these first')
    if data.assumed:
        print('assumed, since the labels do not say:')
        for option, text in data.assumed.items():
            print(f'  {text}. If not: {option}')
        print(f'  To change this, add these options and --force, or edit {out}.')
    print(f'written: {out}\n')
    config, best = quote(out), f'work_dirs/{quote(out.stem)}/best_*.pth'
    print('Next:')
    print(f'  xcit-mm check {config}')
    print(f'  xcit-mm train {config}    # starts from {choice.weights or "scratch"}')
    print(f'  xcit-mm test {config} {best}')
    print(f'  xcit-mm infer {quote(data.example)} --config {config} --checkpoint {best}')


def quote(path: Path | str) -> str:
    """Return a path as a word of a command."""
    return shlex.quote(str(path))
