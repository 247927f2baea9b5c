"""Amounts of memory, as people write them."""

import re

UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


def parse_bytes(text: str) -> int:
    """``4GB``, ``512 MB`` or a number of bytes; units are powers of 1,024."""
    match = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?', text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ValueError(f'{text!r} must be an amount of memory such as 4GB')
    return int(float(match[1]) * UNITS[match[2].upper()])


def format_bytes(count: float) -> str:
    """An amount of memory for people."""
    unit = next(u for u in UNITS if count < 1000 * UNITS[u] or u == 'T')
    return f'{count / UNITS[unit]:.3g} {unit}B'
