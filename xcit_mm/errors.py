"""Errors that a user can fix, and how to tell that memory ran out."""


class UserError(Exception):
    """Something that the user must fix; commands show it as one paragraph, with exit status 2."""


class TooSmallError(ValueError):
    """An image that is smaller than one patch."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; on the CPU, only the message tells."""
    import torch  # here: errors are raised and caught where nothing heavy is needed

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in str(error)
    )
