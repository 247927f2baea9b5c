"""Reads every published checkpoint format safely and translates it to one set of names."""

from .convert import convert
from .formats import recognize, unwrap
from .hook import WeightsError
from .initialize import PretrainedXCiT, inflate
from .read import CheckpointError, UnsafeCheckpointError, read_checkpoint
from .sources import (
    DownloadError,
    download,
    published,
    read_weights,
    register,
    resolve_short_name,
    use_strict_reader,
)

__all__ = [
    'CheckpointError',
    'DownloadError',
    'PretrainedXCiT',
    'UnsafeCheckpointError',
    'WeightsError',
    'convert',
    'download',
    'inflate',
    'published',
    'read_checkpoint',
    'read_weights',
    'recognize',
    'register',
    'resolve_short_name',
    'unwrap',
    'use_strict_reader',
]
