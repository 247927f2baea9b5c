"""What the commands share: error messages, configs, early checks, launchers.

It imports PyTorch and OpenMMLab; commands import it inside ``run``.
"""

import argparse
import difflib
import errno
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, DictAction
from mmengine.hub import get_config
from mmengine.logging import MMLogger
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from xcit_mm.compat import init_gloo, revert_sync_bn
from xcit_mm.configs import nested_dicts
from xcit_mm.datasets.present import PUBLIC
from xcit_mm.datasets.problems import CheckReport
from xcit_mm.engine.console import without_noise
from xcit_mm.engine.parent import die_with_parent
from xcit_mm.engine.runner import GuardedRunner
from xcit_mm.errors import BUILD_ERRORS, UserError
from xcit_mm.weights import use_strict_reader
from xcit_mm_runtime.files import check_new, check_writable
from xcit_mm_runtime.inputs import unsupported_files

from .app import INTERRUPTED

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OS_HINTS = {
    **dict.fromkeys(DISK_FULL, 'Free some space, or write elsewhere.'),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        'Change its permissions or those of its folder, or choose another place.',
    ),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), 'There is a file where a folder is needed: choose another.'
    ),
    errno.EISDIR: 'Expected a file, got a directory.',
}


def explain_errors(work: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; print errors that a user can fix as one paragraph and return 2.

    Args:
        work (callable): What the command does; returns its exit status.
        args (Namespace): Its arguments.
    """
    use_strict_reader()
    # A log that cannot be written is no reason for a traceback: what fails next says why.
    logging.raiseExceptions = False
    try:
        with without_noise(MMLogger.get_current_instance()):
            return work(args)
    except UserError as error:
        message = str(error)
    except BrokenPipeError:
        raise  # nobody reads the output any more: the command ends quietly
    except OSError as error:
        message = explain_os_error(error)
    except KeyboardInterrupt as interrupt:
        print(f'\nInterrupted. {interrupt}'.rstrip(), file=sys.stderr)
        return INTERRUPTED
    print(f'error: {printable(message)}', file=sys.stderr)
    return 2


def printable(text: str) -> str:
    """Strip control characters: names come from untrusted files."""
    return ''.join(c for c in text if c.isprintable() or c == '\n')


def explain_os_error(error: OSError) -> str:
    """Say what the system refused and, where that is known, what to do.

    Args:
        error (OSError): What the system said.
    """
    if error.errno is None:
        return str(error)
    subject = str(error.filename) if error.filename is not None else 'A file'
    hint = OS_HINTS.get(error.errno, '')
    return f'{subject} could not be read or written: {error.strerror}. {hint}'.rstrip()


@contextmanager
def explaining_config(path: str, kinds: tuple[type[Exception], ...] = BUILD_ERRORS) -> Iterator:
    """Raise a :class:`UserError` for what is wrong with a config, with the line where known.

    Args:
        path (str): The config.
        kinds (tuple[type]): Which errors are its fault. Defaults to what building its parts raises.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        # A missing base is the config's fault; a full disk is not.
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise
        # mmengine's messages list the whole search path.
        text = str(error).partition(', the current sys.path')[0]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if os.path.abspath(f.filename) == os.path.abspath(path)]
        where = f', line {lines[-1]}' if lines else ''
        raise UserError(
            f'The config {path} cannot be used{where}: {type(error).__name__}: '
            + ' '.join(text.split())
            + _hint(error)
        ) from error


def _hint(error: Exception) -> str:
    """Say what to do about a missing package, or about a missing file that ``_base_`` names."""
    if isinstance(error, ImportError):
        return '. "xcit-mm doctor" says what is missing and how to install it'
    file = Path(str(getattr(error, 'filename', None)))
    if not isinstance(error, FileNotFoundError) or file.suffix not in ('.py', '.json', '.yaml'):
        return ''
    tasks = [task for task in ('detection', 'segmentation') if task in file.parts[:-1]]
    name = f'{tasks[0]}/{file.name}' if tasks else 'detection/NAME.py'
    return (
        '. Paths in _base_ are relative to the config file that has them. To name a config of this '
        f"project from anywhere: _base_ = 'xcit_mm::{name}'"
    )


def load_config(path: str, options: Sequence[str] | None = None) -> Config:
    """Read a config and apply ``--cfg-options``.

    Args:
        path (str): A file, or ``xcit_mm::detection/NAME.py`` from anywhere.
        options (Sequence[str], optional): Settings to change, each ``KEY=VALUE``.
    """
    with explaining_config(path, (Exception,)):  # a config is a program
        cfg = get_config(path) if '::' in path else Config.fromfile(path)
    if options:
        with explaining_config(f'{path} with --cfg-options {" ".join(options)}', (Exception,)):
            changes = parse_options(options)
            _check_names(cfg, changes)
            cfg.merge_from_dict(changes)
            # mmengine imported what the file names before it knew the options.
            import_modules_from_strings(**cfg.get('custom_imports', {'imports': []}))
    strip_scope(cfg)
    if cfg.get('default_scope') == 'mmseg':
        # Also for configs whose own custom_imports replaced those of ours.
        import_modules_from_strings('xcit_mm.datasets.label_folder', allow_failed_imports=True)
    return cfg


def parse_options(items: Sequence[str]) -> dict[str, Any]:
    """Parse ``--cfg-options`` as mmengine's own tools do.

    Args:
        items (Sequence[str]): Each ``KEY=VALUE``.
    """
    parser, parsed = argparse.ArgumentParser(), argparse.Namespace(options={})
    for item in items:
        try:
            DictAction([], 'options')(parser, parsed, [item])
        except AssertionError as error:  # unbalanced brackets
            raise UserError(f'--cfg-options {item}: {error}.') from None
    return parsed.options


def _check_names(cfg: Config, changes: dict[str, Any]) -> None:
    """Raise if an option looks like a misspelt part of the config. New parts are allowed."""
    known = {*cfg, *inspect.signature(Runner).parameters}
    for key in changes:
        name = key.partition('.')[0]
        close = [] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if close:
            raise UserError(f'--cfg-options {key}: there is no {name}. Did you mean {close[0]}?')


def strip_scope(cfg: Config) -> None:
    """Let ``_base_ = 'xcit_mm::...'`` mean the same as the path of that file.

    mmengine marks what it reads from there to be built in the scope ``xcit_mm``. In that scope,
    ``LoadAnnotations`` of a pipeline, for one, would be mmcv's class instead of mmdet's.

    Args:
        cfg (Config): The config, changed in place.
    """
    for node in nested_dicts(cfg._cfg_dict):
        if node.get('_scope_') == 'xcit_mm':
            del node['_scope_']


def config_name(path: str) -> str:
    """Return the name of a config without folder and ending, for files that belong to it."""
    return Path(path.rpartition('::')[2]).stem


def task_of(cfg: Config) -> str:
    """Return ``mmdet`` for a detector's config, ``mmseg`` for a segmentor's, ``xcit_mm`` for ours.

    Args:
        cfg (Config): The config.
    """
    scope = cfg.get('default_scope')
    if scope not in PUBLIC:
        raise UserError(
            f"The config's default_scope is {scope!r}; it must be 'mmdet' for a "
            "detector, 'mmseg' for a segmentor or 'xcit_mm' for pre-training."
        )
    return scope


def dense_task_of(cfg: Config, command: str) -> str:
    """Return ``mmdet`` or ``mmseg``; raise for a config of pre-training.

    Args:
        cfg (Config): The config.
        command (str): What needs a detector or a segmentor.
    """
    task = task_of(cfg)
    if task == 'xcit_mm':
        raise UserError(
            f'{command} is for detectors and segmentors; this config is for pre-training.'
        )
    return task


def prepare_run(cfg: Config, args: argparse.Namespace) -> None:
    """Apply the settings that every run needs: work folder, launcher, this machine's limits.

    Args:
        cfg (Config): The config, changed in place.
        args (Namespace): See ``options.add_run_options``.
    """
    if args.verbose:
        cfg.verbose = True
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = os.path.join('work_dirs', config_name(args.config))
    cfg.launcher = args.launcher
    if 'TORCHELASTIC_RUN_ID' in os.environ:
        # Otherwise, it would keep training next to the processes of the next torchrun.
        die_with_parent()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    try:
        init_gloo(cfg)
    except ValueError as error:
        raise UserError(str(error)) from None
    revert_sync_bn(cfg)


def build_runner(cfg: Config, path: str) -> Runner:
    """Build the runner with its model, guarded unless the config names a class of its own.

    Args:
        cfg (Config): The config.
        path (str): Its name, for error messages.
    """
    with explaining_config(path):
        return RUNNERS.build(cfg) if 'runner_type' in cfg else GuardedRunner.from_cfg(cfg)


def check_device(device: str | None) -> None:
    """Raise if there is no such device."""
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # torch built without CUDA raises the latter
        devices = ['cpu', *(f'cuda:{i}' for i in range(torch.cuda.device_count()))]
        raise UserError(
            f'There is no device {device!r}; PyTorch finds {", ".join(devices)} here.'
        ) from None


def check_checkpoint(path: str | None) -> None:
    """Raise if a checkpoint is a local path that does not exist."""
    if path is None or '://' in path:
        return
    if not Path(path).expanduser().is_file():
        raise UserError(
            f'There is no checkpoint {Path(path).absolute()}. Give the path of a .pth or '
            '.safetensors file, a web address, or a short name of published weights such as '
            'xcit://coco/s12/8 or xcit://ade20k/upernet/s12/8 (docs/model_zoo.md lists them).'
        )


def check_output(path: str | Path | None, force: bool, otherwise: str = '') -> None:
    """Raise if a file exists or cannot be written, before the work that produces its content.

    Args:
        path (str or Path, optional): The file; nothing is checked if there is none.
        force (bool): Whether it may be overwritten.
        otherwise (str): How to write elsewhere, see ``check_new``. Defaults to ''.
    """
    if path is not None:
        check_new(path, force, otherwise)
        check_writable(path)


def print_problems(report: CheckReport) -> None:
    """Print a table of the problems in a dataset and an example of each, if there are any."""
    if report.problems:
        print(report.describe() + '\n')


def print_left_out(inputs: Sequence[str]) -> None:
    """Print which files of the folders that a user named are not read.

    Args:
        inputs (Sequence[str]): Images, folders and globs.
    """
    for path in unsupported_files(inputs):
        print(f'left out, a file type that is not read from folders: {printable(str(path))}')
