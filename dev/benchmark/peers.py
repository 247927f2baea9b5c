"""Time and memory of backbones and detectors, ours and others, at several resolutions."""

import statistics
from collections.abc import Callable
from typing import Any

from .candidates import NAMES
from .jobs import against_timm, exponent, run_job

LABELS = {
    'ours': 'XCiT-S12/16 (ours)',
    'timm': 'XCiT-S12/16 (timm)',
    'resnet50': 'ResNet-50',
    'swin_t': 'Swin-T',
    'pvt_small': 'PVT-Small',
}
# The paper's resolutions, and one that detectors and aerial images need.
RESOLUTIONS = (224, 384, 512, 1024, 2048)
# Small images take milliseconds, and their times vary most.
REPETITIONS = {224: 101, 384: 31, 512: 15, 1024: 5, 2048: 1}


def scaling(progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure inference of each backbone at each resolution.

    Each runs in its own process, except that the two XCiTs are timed alternately in one process,
    as in the other tables.

    Args:
        progress (callable): Called with a description before each measurement.
    """
    rows = []
    for resolution in RESOLUTIONS:
        size, repetitions = (resolution, resolution), REPETITIONS[resolution]
        for name in NAMES:
            progress(f'{LABELS[name]} at {resolution}')
            alone = run_job('one', [{'name': name}], size, repetitions=min(repetitions, 9))
            measured = alone['times']
            if name in ('timm', 'ours'):
                timm, ours = against_timm('s12', 16, size, repetitions=repetitions)
                measured = timm if name == 'timm' else ours
            rows.append(
                {
                    'model': LABELS[name],
                    'resolution': resolution,
                    'seconds': statistics.median(measured),
                    'peak_MB': alone['peak_MB'],
                }
            )
    return rows


def paper_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a table like the paper's of run time and memory, from :func:`scaling`'s rows."""
    table = []
    for label in LABELS.values():
        line: dict[str, Any] = {'model': label}
        for row in rows:
            if row['model'] == label:
                line[f'im/s {row["resolution"]}'] = 1 / row['seconds']
                line[f'MB {row["resolution"]}'] = round(row['peak_MB'])
        table.append(line)
    return table


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how time and memory of each backbone grow with the number of pixels."""
    table = []
    for label in LABELS.values():
        own = [row for row in rows if row['model'] == label]
        pixels = [row['resolution'] ** 2 for row in own]
        table.append(
            {
                'model': label,
                'time': exponent(pixels, [row['seconds'] for row in own]),
                'memory': exponent(pixels, [row['peak_MB'] for row in own]),
            }
        )
    return table


def detectors(progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure inference of Mask R-CNN on each backbone, 800x1344."""
    rows = []
    for name in NAMES:
        progress(f'Mask R-CNN on {LABELS[name]}')
        run = run_job('one', [{'name': name}], (800, 1344), 'detect', repetitions=3)
        rows.append(
            {
                'Mask R-CNN on': LABELS[name],
                'seconds': min(run['times']),
                'peak_MB': round(run['peak_MB']),
            }
        )
    return rows


def plot_scaling(rows: list[dict[str, Any]], key: str, label: str, path: str) -> None:
    """Draw one log-log plot of time or memory against resolution, with the fitted exponents."""
    from matplotlib.figure import Figure

    fitted = {row['model']: row for row in exponents(rows)}
    column = 'time' if key == 'seconds' else 'memory'
    figure = Figure(figsize=(7, 4.5), layout='constrained')
    axes = figure.subplots()
    for name, text in LABELS.items():
        own = [row for row in rows if row['model'] == text]
        axes.plot(
            [row['resolution'] for row in own],
            [row[key] for row in own],
            marker='o',
            linewidth=2.5 if name == 'ours' else 1.5,
            linestyle='--' if name == 'timm' else '-',
            label=f'{text}: pixels^{fitted[text][column]:.2f}',
        )
    axes.set_xscale('log', base=2)
    axes.set_yscale('log')
    axes.set_xticks(RESOLUTIONS, [str(resolution) for resolution in RESOLUTIONS])
    axes.set_xlabel('height and width of the image')
    axes.set_ylabel(label)
    axes.grid(alpha=0.3, which='both')
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
