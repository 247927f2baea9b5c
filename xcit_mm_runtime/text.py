"""Wording that messages share."""

from collections.abc import Sequence


def join_some(names: Sequence[object], most: int = 5) -> str:
    """Join names by commas; beyond the first ones, only say how many there are.

    Args:
        names (Sequence): The names.
        most (int): How many are shown. Defaults to 5.
    """
    shown = ', '.join(map(str, names[:most]))
    return f'{shown} and {len(names) - most} more' if len(names) > most else shown
