"""What training, testing and inference share: configs, early checks, launchers."""

import argparse
import functools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config, DictAction
from mmengine.hub import get_config
from mmengine.utils import import_modules_from_strings

from ..compat import init_gloo, revert_sync_bn
from ..datasets import ensure_shapes
from ..datasets.check import DataError
from ..errors import UserError
from ..weights import CheckpointError, WeightsError, use_strict_reader

LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')

COCO_LAYOUT = """\
data/coco/
  annotations/instances_train2017.json
  annotations/instances_val2017.json
  train2017/  000000000009.jpg ...
  val2017/    000000000139.jpg ..."""
ADE20K_LAYOUT = """\
data/ade/ADEChallengeData2016/
  images/training/         ADE_train_00000001.jpg ...
  images/validation/       ADE_val_00000001.jpg ...
  annotations/training/    ADE_train_00000001.png ...
  annotations/validation/  ADE_val_00000001.png ..."""
DATASETS = {
    'mmdet': ('COCO 2017 from https://cocodataset.org/#download', COCO_LAYOUT),
    'mmseg': (
        'ADEChallengeData2016.zip of the scene-parsing benchmark from '
        'http://sceneparsing.csail.mit.edu',
        ADE20K_LAYOUT,
    ),
}


def command(main: Callable[[], int | None]) -> Callable[[], None]:
    """Make a tool's ``main`` end with a paragraph and status 2, not a stack trace, on bad input."""

    @functools.wraps(main)
    def wrapped() -> None:
        use_strict_reader()
        try:
            sys.exit(main())
        except (UserError, CheckpointError, WeightsError, DataError) as error:
            # Of names that a file holds, what is no text could be a command to the terminal.
            text = ''.join(c for c in str(error) if c.isprintable() or c == '\n')
            print(f'error: {text}', file=sys.stderr)
            sys.exit(2)

    return wrapped


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that ``train.py`` and ``test.py`` have in common."""
    parser.add_argument('--work-dir', help='where logs and results go (default: work_dirs/CONFIG)')
    add_config_options(parser)
    parser.add_argument(
        '--launcher', choices=LAUNCHERS, default='none', help='how processes are started'
    )
    # torch.distributed.launch passes this one.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--cfg-options``."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='change settings of the config: train_dataloader.batch_size=4, or for lists '
        'key="[a,b]"',
    )


def load_config(path: str, options: dict[str, Any] | None = None) -> Config:
    """Read a config and apply ``--cfg-options``.

    Args:
        path (str): A file, or ``xcit_mm::detection/NAME.py`` from anywhere.
        options (dict, optional): Settings to change.
    """
    if '::' in path:
        try:
            cfg = get_config(path)
        except (FileNotFoundError, ValueError, AssertionError) as error:
            raise UserError(f'There is no config {path}: {error}') from None
    elif Path(path).is_file():
        cfg = Config.fromfile(path)
    else:
        raise UserError(
            f'There is no config {Path(path).absolute()}. The configs of this project are in '
            'configs/detection/ and configs/segmentation/, for instance '
            'configs/detection/mask_rcnn_xcit_s12_8_3x.py; installed, they can be named from '
            'anywhere as xcit_mm::detection/mask_rcnn_xcit_s12_8_3x.py.' + _similar(path)
        )
    if options:
        cfg.merge_from_dict(options)
        # mmengine imports what the file names, before the options are known.
        import_modules_from_strings(**cfg.get('custom_imports', {'imports': []}))
    return cfg


def _similar(path: str) -> str:
    import difflib

    folder = Path(path).parent
    names = [file.name for file in folder.glob('*.py')] if folder.is_dir() else []
    close = difflib.get_close_matches(Path(path).name, names)
    return f' Did you mean {folder / close[0]}?' if close else ''


def prepare(cfg: Config, args: argparse.Namespace) -> None:
    """Settings that a run needs whatever it does: work folder, launcher, this machine's limits."""
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = os.path.join('work_dirs', Path(args.config.split('::')[-1]).stem)
    cfg.launcher = args.launcher
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    try:
        init_gloo(cfg)
    except ValueError as error:
        raise UserError(str(error)) from None
    revert_sync_bn(cfg)


def task_of(cfg: Config) -> str:
    """``mmdet`` for a detector's config, ``mmseg`` for a segmentor's."""
    scope = cfg.get('default_scope')
    if scope not in DATASETS:
        raise UserError(
            f"The config's default_scope is {scope!r}; it must be 'mmdet' or 'mmseg', which say "
            'whether it is a detector or a segmentor.'
        )
    return scope


def check_checkpoint(path: str | None) -> None:
    """Raise if a checkpoint is a path, not an address, and does not exist."""
    if path is None or '://' in path:
        return
    if not Path(path).expanduser().is_file():
        raise UserError(
            f'There is no checkpoint {Path(path).absolute()}. Give the path of a .pth or '
            '.safetensors file, a web address, or a short name of published weights such as '
            'xcit://coco/s12/8 or xcit://ade20k/upernet/s12/8 (docs/model_zoo.md lists them).'
        )


def check_datasets(cfg: Config, loaders: tuple[str, ...]) -> None:
    """Make the embedded data set if the config asks for it; raise if data is missing.

    Args:
        cfg (Config): The config.
        loaders (tuple[str]): Names of the data loaders that will be used.
    """
    if 'shapes' in cfg:
        try:
            ensure_shapes(**cfg.shapes)
        except FileExistsError as error:
            raise UserError(str(error)) from None
    for loader in loaders:
        for dataset in innermost_datasets(cfg.get(loader)):
            for what, path in _needed_paths(dataset):
                if not path.exists():
                    raise UserError(_missing_data(task_of(cfg), loader, what, path))


def innermost_datasets(node: Any) -> Iterator[dict]:
    """The innermost data sets of a data loader: wrappers hold others."""
    if not isinstance(node, dict):
        return
    inner = node.get('dataset') or node.get('datasets')
    if inner is None:
        if 'data_root' in node or 'ann_file' in node:
            yield node
        return
    for dataset in inner if isinstance(inner, (list, tuple)) else [inner]:
        yield from innermost_datasets(dataset)


def _needed_paths(dataset: dict) -> Iterator[tuple[str, Path]]:
    root = Path(dataset.get('data_root') or '')
    if '://' in str(dataset.get('data_root') or ''):
        return  # not on this machine's disk
    if dataset.get('data_root'):
        yield 'data_root', root
    if dataset.get('ann_file'):
        yield 'ann_file', root / dataset['ann_file']
    for key, folder in (dataset.get('data_prefix') or {}).items():
        if folder:
            yield f'data_prefix.{key}', root / folder


def _missing_data(scope: str, loader: str, what: str, path: Path) -> str:
    origin, layout = DATASETS[scope]
    return (
        f'The data set is not there: {path.absolute()} does not exist ({what} of {loader} in the '
        f'config). Get {origin}, and lay it out, or link to it, like this:\n\n'
        f'{textwrap.indent(layout, "  ")}\n\n'
        'Data elsewhere: change data_root of the three data loaders, in a config of your own or by '
        '--cfg-options train_dataloader.dataset.data_root=...; docs/custom_data.md shows how.'
    )
