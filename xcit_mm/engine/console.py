"""Keeps noise and details off the console; the log file has every line of the log."""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator

# What mmengine, mmdet and mmseg say about their own code. A user cannot do anything about it.
NOISE = (
    r'``build_loss`` would be deprecated',
    r'Default ``avg_non_ignore`` is False',
    r'The draw is False, it means that the hook for visualization',
    r'`reduce_zero_label` will be deprecated',
    r'Failed to add <class .*VisBackend',
    r'"FileClient" will be deprecated',
    r'"HardDiskBackend" is the alias',
    r'The prefix is not set in metric class',
    r'For binary segmentation, we suggest using',
    # One line for each frozen parameter; the start of a run counts them.
    r'\S+ is skipped since its requires_grad=False',
    # No package has a registry of functions; mmengine's inferencers ask for one.
    r'Failed to search registry with scope "\w+" in the "function" registry tree',
)


@contextlib.contextmanager
def without_noise(logger: logging.Logger) -> Iterator[None]:
    """Hide :data:`NOISE` among Python's warnings and on the console of a logger.

    Args:
        logger (Logger): The logger that is used until a run has its own.
    """
    hide_noise(logger)
    with warnings.catch_warnings():
        for pattern in NOISE:
            warnings.filterwarnings('ignore', pattern)
        yield


def hide_noise(logger: logging.Logger) -> None:
    """Hide :data:`NOISE` on the console of a logger."""
    for handler in console_handlers(logger):
        handler.addFilter(is_not_noise)


def console_handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers of a logger that write to the screen, not to a file."""
    return [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]


def is_not_noise(record: logging.LogRecord) -> bool:
    """Return whether a record is of interest to a user."""
    return not any(re.match(pattern, str(record.msg)) for pattern in NOISE)


class StartFilter(logging.Filter):
    """Hides the details of a run's start: records below WARNING that are not marked as wanted."""

    starting = True

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a record."""
        is_wanted = getattr(record, 'wanted', False)
        return not self.starting or is_wanted or record.levelno >= logging.WARNING
