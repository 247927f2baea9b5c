"""Curves of a training run, from what mmengine logs."""

import io
import json
from pathlib import Path

from matplotlib.figure import Figure

from ..tables import best_value

Curve = dict[int, float]


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
