"""One self-contained page: numbers, curves, pictures, the commands that made them, versions."""

import base64
import html
import io
import json
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ..tables import best_value, format_metric

Curve = dict[int, float]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0; }
.card { background: var(--soft); border-radius: .6rem; padding: .8rem 1.4rem; text-align: center; }
.card b { display: block; font-size: 2.2rem; font-variant-numeric: tabular-nums; }
.curve { background: #fff; border-radius: .6rem; padding: .5rem; }
.curve img { width: 100%; }
.pictures { display: grid; gap: .8rem; }
.pictures { grid-template-columns: repeat(auto-fill, minmax(26rem, 1fr)); }
.pictures img { width: 100%; border-radius: .4rem; }
pre { background: var(--soft); padding: .8rem; border-radius: .6rem; white-space: pre-wrap; }
td, th { text-align: left; padding: .1rem 1.2rem .1rem 0; font-variant-numeric: tabular-nums; }
"""


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
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>XCiT-MM demo</title><style>{STYLE}</style></head><body>'
        '<h1>XCiT-MM demo</h1><p>Two models trained from scratch on drawn images and '
        'evaluated on images that they have not seen.</p>'
        f'<div class="cards">{cards}</div>{body}'
        f'<h2>How it was made</h2><table>{rows}</table></body></html>\n'
    )


def _section(section: Section) -> str:
    pictures = ''.join(
        f'<img alt="{html.escape(path.stem)}" src="{_data("image/png", path.read_bytes())}">'
        for path in section.pictures
    )
    metrics = ''.join(
        f'<tr><td>{html.escape(key)}</td><td data-metric="{html.escape(key)}">{value:.4g}</td></tr>'
        for key, value in section.metrics.items()
    )
    commands = html.escape('\n'.join(section.commands))
    return (
        f'<h2>{html.escape(section.title)}</h2><div class="curve"><img alt="curves" '
        f'src="{_data("image/svg+xml", section.curves)}"></div>'
        '<h3>Ground truth (left) and prediction (right)</h3>'
        f'<div class="pictures">{pictures}</div>'
        f'<details><summary>All metrics</summary><table>{metrics}</table></details>'
        f'<h3>Commands</h3><pre>{commands}</pre>'
    )


def _data(kind: str, content: bytes) -> str:
    return f'data:{kind};base64,{base64.b64encode(content).decode()}'


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
