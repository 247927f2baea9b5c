"""Reads the config of a run, explains what is wrong with it, and builds its runner."""

import argparse
import difflib
import errno
import inspect
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.config import Config, DictAction
from mmengine.hub import get_config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from ..configs import nested_dicts
from ..datasets.present import PUBLIC
from ..errors import BUILD_ERRORS, UserError
from .runner import GuardedRunner


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
        while isinstance(error, ImportError) and isinstance(error.__context__, ImportError):
            error = error.__context__  # mmengine's own do not name the package that is missing
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
            _check_option_names(cfg, changes)
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


def _check_option_names(cfg: Config, changes: dict[str, Any]) -> None:
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


def scope_of(cfg: Config) -> str:
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


def dense_scope_of(cfg: Config, command: str) -> str:
    """Return ``mmdet`` or ``mmseg``; raise for a config of pre-training.

    Args:
        cfg (Config): The config.
        command (str): What needs a detector or a segmentor.
    """
    scope = scope_of(cfg)
    if scope == 'xcit_mm':
        raise UserError(
            f'{command} is for detectors and segmentors; this config is for pre-training.'
        )
    return scope


def build_runner(cfg: Config, path: str) -> Runner:
    """Build the runner with its model, guarded unless the config names a class of its own.

    Args:
        cfg (Config): The config.
        path (str): Its name, for error messages.
    """
    with explaining_config(path):
        return RUNNERS.build(cfg) if 'runner_type' in cfg else GuardedRunner.from_cfg(cfg)
