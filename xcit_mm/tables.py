"""Tables for people (text, Markdown, HTML) and for programs (JSON)."""

import html
import json
from collections.abc import Sequence
from typing import Any


def format_table(rows: Sequence[dict[str, Any]], style: str = 'text') -> str:
    """Lay out rows that have the same keys.

    Args:
        rows (Sequence[dict]): The rows; the keys of the first are the columns.
        style (str): ``text``, ``markdown``, ``html`` or ``json``.
    """
    if style == 'json':
        return json.dumps(list(rows), indent=1)
    if not rows:
        return '(nothing)'
    columns = list(rows[0])
    cells = [columns, *([_text(row[column]) for column in columns] for row in rows)]
    if style == 'html':
        tags = ['th', *['td'] * len(rows)]
        lines = [
            ''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in line)
            for tag, line in zip(tags, cells, strict=True)
        ]
        return f'<table><tr>{"</tr><tr>".join(lines)}</tr></table>'
    numeric = [all(isinstance(row[c], (int, float, type(None))) for row in rows) for c in columns]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    aligned = [
        [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        for line in cells
    ]
    if style == 'text':
        return '\n'.join('  '.join(line).rstrip() for line in aligned)
    rule = [
        '-' * (w - 1) + ':' if right else '-' * w for w, right in zip(widths, numeric, strict=True)
    ]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in [aligned[0], rule, *aligned[1:]])


def best_value(metric: str) -> int:
    """Return the largest value of a metric: 1 for AP, as in mmdet; 100 for others, as in mmseg."""
    return 1 if 'AP' in metric else 100


def metric_digits(metric: str) -> int:
    """Return the decimals that a metric is written with, as :func:`best_value` scales it."""
    return 3 if best_value(metric) == 1 else 1


def format_metric(metric: str, value: float) -> str:
    """Return a metric to three digits, as :func:`best_value` scales it: AP 0.388, mIoU 45.8.

    Args:
        metric (str): Its name.
        value (float): Its value.
    """
    return f'{value:.{metric_digits(metric)}f}'


def _text(value: Any) -> str:
    if value is None:
        return '-'
    return f'{value:.4g}' if isinstance(value, float) else str(value)
