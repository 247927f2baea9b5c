"""What the commands share: error messages, early checks, launchers.

It imports PyTorch and OpenMMLab; commands import it inside ``run``.
"""

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger

from xcit_mm.compat import init_gloo, revert_fused, revert_sync_bn
from xcit_mm.engine.console import without_noise
from xcit_mm.engine.parent import die_with_parent
from xcit_mm.errors import DISK_FULL, UserError
from xcit_mm.weights import use_strict_reader
from xcit_mm_runtime.files import check_new, check_writable
from xcit_mm_runtime.inputs import unsupported_files

from .app import INTERRUPTED

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


def config_name(path: str) -> str:
    """Return the name of a config without folder and ending, for files that belong to it."""
    return Path(path.rpartition('::')[2]).stem


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
    revert_fused(cfg)


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


def print_left_out(inputs: Sequence[str]) -> None:
    """Print which files of the folders that a user named are not read.

    Args:
        inputs (Sequence[str]): Images, folders and globs.
    """
    for path in unsupported_files(inputs):
        print(f'left out, a file type that is not read from folders: {printable(str(path))}')
