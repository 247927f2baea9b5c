"""Writes generated tables into pages of the documentation, and the numbers behind them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xcit_mm_runtime.errors import UserError
from xcit_mm_runtime.files import write_atomically


def write_between_marks(page: Path, parts: Mapping[str, str]) -> None:
    """Replace what stands between the marks of a page, leave the rest of it alone, and say so.

    Args:
        page (Path): The page, in Markdown.
        parts (Mapping[str, str]): What goes between ``<!-- NAME -->`` and ``<!-- end of NAME -->``,
            by name.
    """
    text = page.read_text(encoding='utf-8')
    for name, part in parts.items():
        start, end = f'<!-- {name} -->', f'<!-- end of {name} -->'
        before, found, rest = text.partition(start)
        _, also_found, after = rest.partition(end)
        if not found or not also_found:
            raise UserError(f'{page} must have the marks {start} and {end}.')
        text = f'{before}{start}\n{part}\n{end}{after}'
    write_page(page, text)


def write_page(page: Path, text: str) -> None:
    """Write a page that is generated as a whole, and say so."""
    write_atomically(page, text)
    print(f'Page: {page}')


def write_numbers(path: Path, numbers: Any) -> None:
    """Write numbers as JSON, and say so."""
    write_atomically(path, json.dumps(numbers, indent=1) + '\n')
    print(f'Numbers: {path}')
