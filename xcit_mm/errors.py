"""Errors that a user can fix, and how to tell that memory or the disk ran out."""

import errno

from xcit_mm_runtime.errors import UserError

__all__ = ['BUILD_ERRORS', 'DISK_FULL', 'TooSmallError', 'UserError', 'is_out_of_memory']

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What classes raise if they cannot be built with the arguments of a config.
BUILD_ERRORS = (AssertionError, AttributeError, ImportError, KeyError, TypeError, ValueError)


class TooSmallError(ValueError):
    """An image that is smaller than one patch."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed; on the CPU, only the message tells."""
    import torch  # here: errors are raised and caught where nothing heavy is needed

    return isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or (
        "can't allocate memory" in str(error)
    )
