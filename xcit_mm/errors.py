"""Errors that a user can fix, and how to tell that memory ran out."""

from xcit_mm_deploy.errors import UserError

__all__ = ['TooSmallError', 'UserError', 'is_out_of_memory']


class TooSmallError(ValueError):
    """An image that is smaller than one patch."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; on the CPU, only the message tells."""
    import torch  # here: errors are raised and caught where nothing heavy is needed

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in str(error)
    )
