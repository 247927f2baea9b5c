"""One self-contained page: numbers, curves, pictures, the commands that made them, versions."""

import html
import io
import json
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ..html_page import html_image, html_page
from ..tables import best_value, format_metric

Curve = dict[int, float]


@dataclass
class Section:
    """The part of the page about one model.

    Args:
        title (str): Its name.
        headline (dict[str, tuple[str, float]]): Name in the JSON -> display name and value.
        metrics (dict[str, float]): All metrics.
        curves (bytes): An SVG.
        pictures (list[Path]): PNG files.
        commands (list[str]): What was run.
    """

    title: str
    headline: dict[str, tuple[str, float]]
    metrics: dict[str, float]
    curves: bytes
    pictures: list[Path]
    commands: list[str]


def render(sections: list[Section], facts: dict[str, str]) -> str:
    """Return the page as text.

    Args:
        sections (list[Section]): One per model.
        facts (dict[str, str]): Data, seed, time, versions.
    """
    cards = ''.join(
        f'<div class="card"><b data-metric="{html.escape(key)}">{format_metric(key, value)}</b>'
        f'{html.escape(name)}</div>'
        for section in sections
        for key, (name, value) in section.headline.items()
    )
    rows = ''.join(
        f'<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>'
        for key, value in facts.items()
    )
    body = ''.join(_section(section) for section in sections)
    return html_page(
        'XCiT-MM demo',
        '<p>Two models trained from scratch on drawn images and evaluated on images that they have '
        f'not seen.</p><div class="cards">{cards}</div>{body}'
        f'<h2>How it was made</h2><table>{rows}</table>',
    )


def _section(section: Section) -> str:
    pictures = ''.join(
        html_image(path.stem, 'image/png', path.read_bytes()) for path in section.pictures
    )
    metrics = ''.join(
        f'<tr><td>{html.escape(key)}</td><td data-metric="{html.escape(key)}">{value:.4g}</td></tr>'
        for key, value in section.metrics.items()
    )
    commands = html.escape('\n'.join(section.commands))
    return (
        f'<h2>{html.escape(section.title)}</h2><div class="curve">'
        f'{html_image("curves", "image/svg+xml", section.curves)}</div>'
        '<h3>Ground truth (left) and prediction (right)</h3>'
        f'<div class="pictures">{pictures}</div>'
        f'<details><summary>All metrics</summary><table>{metrics}</table></details>'
        f'<h3>Commands</h3><pre>{commands}</pre>'
    )


def read_curves(work_dir: Path, metrics: list[str]) -> tuple[Curve, dict[str, Curve]]:
    """Read the loss and the metrics over the iterations, of a run and the runs that resumed it.

    Args:
        work_dir (Path): Work folder of the run.
        metrics (list[str]): Names of metrics.

    Returns:
        tuple: Loss by iteration, and for each metric its value by iteration.
    """
    loss: Curve = {}
    values: dict[str, Curve] = {name: {} for name in metrics}
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in path.read_text(encoding='utf-8').splitlines():
            row = json.loads(line)
            if 'loss' in row:
                loss[row['step']] = row['loss']
            for name in metrics:
                if name in row:
                    values[name][row['step']] = row[name]
    return loss, values


def plot_curves(loss: Curve, metrics: dict[str, Curve], labels: dict[str, str]) -> bytes:
    """Draw the loss on the left and metrics on the right, as SVG.

    Args:
        loss (dict[int, float]): Loss by iteration.
        metrics (dict[str, dict]): Each metric by iteration.
        labels (dict[str, str]): Display names of the metrics.
    """
    figure = Figure(figsize=(9, 2.9), layout='constrained')
    left, right = figure.subplots(1, 2)
    left.plot(list(loss), list(loss.values()), color='tab:blue')
    left.set_yscale('log')
    left.set_ylabel('training loss')
    for name, curve in metrics.items():
        right.plot(list(curve), list(curve.values()), marker='o', label=labels[name])
    right.set_ylim(0, max(map(best_value, metrics)))
    right.set_ylabel('on held-out images')
    right.legend(frameon=False, loc='lower right')
    for axes in (left, right):
        axes.set_xlabel('iteration')
        axes.grid(alpha=0.3, which='both')
        axes.spines[['top', 'right']].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='svg')
    return buffer.getvalue()
