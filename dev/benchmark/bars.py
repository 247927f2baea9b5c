"""The performance targets of this project, and how each is measured."""

import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import jobs
from .jobs import against_timm, exponent, run_job, speedup
from .peers import REPETITIONS

DETECTION_SIZE = (800, 1344)
# 0.25, 1, 4 and 24 megapixels.
GROWTH_SIZES = ((512, 512), (1024, 1024), (2048, 2048), (4000, 6000))
# Small images, where a step is short and everything around the products counts: size, batch, mode.
SMALL = (
    ('s12', 384, 1, 'infer'),
    ('n12', 224, 1, 'infer'),
    ('s12', 96, 32, 'train'),
    ('s12', 224, 8, 'train'),
    ('n12', 224, 16, 'train'),
)
RECOMPUTE = {'with_cp': True, 'recompute_ffn': True}


@dataclass
class Result:
    """One line of the table."""

    what: str
    bar: str
    aim: str
    measured: str
    met: bool
    numbers: dict[str, Any]


def _ours(arch: str, patch_size: int, **options: Any) -> dict[str, Any]:
    return {'name': 'ours', 'arch': arch, 'patch_size': patch_size, **options}


def _timm(arch: str, patch_size: int) -> dict[str, Any]:
    return {'name': 'timm', 'arch': arch, 'patch_size': patch_size}


def _faster(
    what: str,
    arch: str,
    patch_size: int,
    bar: float,
    aim: float,
    mode: str = 'infer',
    size: tuple[int, int] = DETECTION_SIZE,
    repetitions: int = 3,
    batch: int = 1,
) -> Callable[[], Result]:
    def measure() -> Result:
        times = against_timm(arch, patch_size, size, mode, repetitions, batch)
        ratio = speedup(times)
        numbers = {'timm_s': times[0], 'ours_s': times[1], 'speedup': ratio.value}
        return Result(
            what, f'≥ {bar}x', f'≥ {aim}x', f'{ratio} faster', ratio.value >= bar, numbers
        )

    return measure


def _memory(
    what: str, arch: str, patch_size: int, bar: float, aim: str, mode: str, **options: Any
) -> Callable[[], Result]:
    def measure() -> Result:
        theirs = _timm_peak(arch, patch_size, mode)
        ours = _peak(_ours(arch, patch_size, **options), mode)
        ratio = ours / theirs
        text = f'{ratio:.2f}x ({ours:.0f} of {theirs:.0f} MB)'
        numbers = {'timm_MB': theirs, 'ours_MB': ours, 'ratio': ratio}
        return Result(what, f'≤ {bar}x', aim, text, ratio <= bar, numbers)

    return measure


@functools.cache
def _timm_peak(arch: str, patch_size: int, mode: str) -> float:
    """Cached, so that our default and our leanest options are compared with the same number."""
    return _peak(_timm(arch, patch_size), mode)


def _peak(candidate: dict[str, Any], mode: str) -> float:
    return run_job('one', [candidate], DETECTION_SIZE, mode, 1)['peak_MB']


def _recompute_time(patch_size: int, repetitions: int) -> Callable[[], Result]:
    def measure() -> Result:
        pair = [_ours('s12', patch_size, **RECOMPUTE), _ours('s12', patch_size)]
        times = run_job('pair', pair, DETECTION_SIZE, 'train', repetitions)['times']
        ratio = speedup(times)
        numbers = {'recompute_s': times[0], 'default_s': times[1], 'ratio': ratio.value}
        what = f'time with every recomputation over our default, S12/{patch_size}'
        return Result(what, '≤ 1.3x', '', str(ratio), ratio.value <= 1.3, numbers)

    return measure


def _growth() -> Result:
    pixels = [height * width for height, width in GROWTH_SIZES]
    runs = [run_job('one', [_ours('s12', 16)], size, repetitions=1) for size in GROWTH_SIZES]
    times = [min(run['times']) for run in runs]
    memory = [run['peak_MB'] for run in runs]
    slopes = exponent(pixels, times), exponent(pixels, memory)
    numbers = {'pixels': pixels, 'seconds': times, 'peak_MB': memory, 'exponents': slopes}
    text = f'time {slopes[0]:.3f}, memory {slopes[1]:.3f}'
    what = 'growth from 0.25 to 24 megapixels, S12/16: exponent in pixels'
    return Result(what, '≤ 1.05', '≤ 1.02', text, max(slopes) <= 1.05, numbers)


def _large_image() -> Result:
    run = run_job('one', [_ours('s12', 8, pyramid=True)], (4000, 6000), repetitions=1)
    gigabytes = run['process_MB'] / 1024
    what = 'S12/8 with pyramid on one 6000x4000 image: process memory'
    text = f'{gigabytes:.1f} GB in {run["times"][0]:.0f} s'
    return Result(what, '≤ 8 GB', '≤ 6 GB', text, gigabytes <= 8, run)


def _share() -> Result:
    run = run_job('rate', [_ours('s12', 8)], DETECTION_SIZE, repetitions=3)
    rate = statistics.median(run['rates'])
    share = run['flops'] / statistics.median(run['times']) / rate
    text = f'{share:.0%} of {rate / 1e9:.0f} GFLOP/s'
    what = "share of this machine's float32 matrix-multiply rate, S12/8 inference"
    return Result(what, '≥ 80%', '≥ 88%', text, share >= 0.8, {**run, 'share': share})


def bars(quick: bool = False) -> Iterator[tuple[str, Callable[[], Result]]]:
    """The measurements, each with a name for the progress bar.

    Args:
        quick (bool): Whether to run only the quick ones, which take a few minutes together.
    """
    yield 'S12/8 inference', _faster('S12/8 inference, 800x1344', 's12', 8, 1.6, 1.8)
    yield (
        'S12/16 inference',
        _faster('S12/16 inference, 800x1344', 's12', 16, 1.4, 1.6, repetitions=7),
    )
    yield (
        'S12/16 at 224',
        _faster(
            'S12/16 inference, 224x224',
            's12',
            16,
            1.0,
            1.1,
            size=(224, 224),
            repetitions=REPETITIONS[224],
        ),
    )
    yield (
        'S12/8 memory',
        _memory(
            'peak memory above the weights, S12/8 inference', 's12', 8, 0.55, '≤ 0.4x', 'infer'
        ),
    )
    if quick:
        return
    yield (
        'M24/8 inference',
        _faster('M24/8 inference, 800x1344', 'm24', 8, 1.5, 1.8, repetitions=2),
    )
    for patch_size, bar, aim, repetitions in ((16, 1.25, 1.4, 5), (8, 1.2, 1.35, 2)):
        size = f'S12/{patch_size}'
        yield (
            f'{size} training',
            _faster(
                f'{size} training step, 800x1344', 's12', patch_size, bar, aim, 'train',
                repetitions=repetitions,
            ),
        )  # fmt: skip
        yield (
            f'{size} training memory',
            _memory(
                f'peak memory of that step, {size}', 's12', patch_size, 0.55, '≤ 0.45x', 'train'
            ),
        )
        yield (
            f'{size} recomputing, memory',
            _memory(
                f'peak memory with every recomputation, {size}',
                's12', patch_size, 0.3, '', 'train', **RECOMPUTE,
            ),
        )  # fmt: skip
        yield f'{size} recomputing, time', _recompute_time(patch_size, min(repetitions, 3))
    for arch, side, batch, mode in SMALL:
        what = {'infer': 'inference', 'train': 'training step'}[mode]
        what = f'{arch.upper()}/16 {what}, {batch} of {side}x{side}'
        yield (
            what,
            _faster(
                what, arch, 16, 1.0, 1.2, mode, (side, side),
                repetitions=REPETITIONS[384] if mode == 'infer' else 15, batch=batch,
            ),
        )  # fmt: skip
    if jobs.DEVICE != 'cpu':
        for patch_size in (16, 8):
            what = f'S12/{patch_size} training step under autocast, 800x1344'
            yield what, _faster(what, 's12', patch_size, 1.0, 1.2, 'amp')
    yield 'growth', _growth
    yield '24 megapixels', _large_image
    yield 'matrix-multiply rate', _share
