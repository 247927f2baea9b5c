"""Writes generated tables into pages of the documentation, between marks."""

from collections.abc import Mapping
from pathlib import Path

from xcit_mm.errors import UserError
from xcit_mm_runtime.files import write_atomically


def write_between_marks(page: Path, parts: Mapping[str, str]) -> None:
    """Replace what stands between the marks of a page, and leave the rest of it alone.

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
    write_atomically(page, text)
