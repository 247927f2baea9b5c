"""The performance targets of this project, and how each is measured."""

import functools
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from xcit_mm.models.variants import VARIANTS

from .jobs import against_timm, exponent, run_job, speedup, timm_and_ours
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


class Measured(NamedTuple):
    """A measurement: its text in the table, whether the bar is met, and the numbers behind it."""

    measured: str
    met: bool
    numbers: dict[str, Any]


class Bar(NamedTuple):
    """A line of the table: what is measured, what it must reach, and what we aim at."""

    what: str
    bar: str
    aim: str
    measure: Callable[[], Measured]

    def result(self) -> dict[str, Any]:
        """Measure, and return the line."""
        line = {'what': self.what, 'bar': self.bar, 'aim': self.aim}
        return {**line, **self.measure()._asdict()}


def _ours(arch: str, patch_size: int, **options: Any) -> dict[str, Any]:
    return {'name': 'ours', 'arch': arch, 'patch_size': patch_size, **options}


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
    **options: Any,
) -> Bar:
    def measure() -> Measured:
        times = against_timm(arch, patch_size, size, mode, repetitions, batch, **options)
        ratio = speedup(times)
        numbers = {'timm_s': times[0], 'ours_s': times[1], 'speedup': ratio.value}
        return Measured(f'{ratio} faster', ratio.value >= bar, numbers)

    return Bar(what, f'≥ {bar}x', f'≥ {aim}x', measure)


def _memory(
    what: str, arch: str, patch_size: int, bar: float, aim: str, mode: str, **options: Any
) -> Bar:
    def measure() -> Measured:
        theirs = _timm_peak(arch, patch_size, mode)
        ours = _peak(_ours(arch, patch_size, **options), mode)
        ratio = ours / theirs
        text = f'{ratio:.2f}x ({ours:.0f} of {theirs:.0f} MB)'
        numbers = {'timm_MB': theirs, 'ours_MB': ours, 'ratio': ratio}
        return Measured(text, ratio <= bar, numbers)

    return Bar(what, f'≤ {bar}x', aim, measure)


@functools.cache
def _timm_peak(arch: str, patch_size: int, mode: str) -> float:
    """Cached, so that our default and our leanest options are compared with the same number."""
    return _peak(timm_and_ours(arch, patch_size)[0], mode)


def _peak(candidate: dict[str, Any], mode: str) -> float:
    return run_job('one', [candidate], DETECTION_SIZE, mode, 1)['peak_MB']


def _recompute_time(patch_size: int, repetitions: int) -> Bar:
    def measure() -> Measured:
        pair = [_ours('s12', patch_size, **RECOMPUTE), _ours('s12', patch_size)]
        times = run_job('several', pair, DETECTION_SIZE, 'train', repetitions)['times']
        ratio = speedup(times)
        numbers = {'recompute_s': times[0], 'default_s': times[1], 'ratio': ratio.value}
        return Measured(str(ratio), ratio.value <= 1.3, numbers)

    what = f'time with every recomputation over our default, S12/{patch_size}'
    return Bar(what, '≤ 1.3x', '', measure)


def _growth() -> Measured:
    pixels = [height * width for height, width in GROWTH_SIZES]
    runs = [run_job('one', [_ours('s12', 16)], size, repetitions=1) for size in GROWTH_SIZES]
    times = [min(run['times']) for run in runs]
    memory = [run['peak_MB'] for run in runs]
    slopes = exponent(pixels, times), exponent(pixels, memory)
    numbers = {'pixels': pixels, 'seconds': times, 'peak_MB': memory, 'exponents': slopes}
    text = f'time {slopes[0]:.3f}, memory {slopes[1]:.3f}'
    return Measured(text, max(slopes) <= 1.05, numbers)


def _large_image() -> Measured:
    run = run_job('one', [_ours('s12', 8, pyramid=True)], (4000, 6000), repetitions=1)
    gigabytes = run['process_MB'] / 1024
    return Measured(f'{gigabytes:.1f} GB in {run["times"][0]:.0f} s', gigabytes <= 8, run)


def _share() -> Measured:
    run = run_job('rate', [_ours('s12', 8)], DETECTION_SIZE)
    rate = statistics.median(run['rates'])
    share = run['flops'] / statistics.median(run['times']) / rate
    text = f'{share:.0%} of {rate / 1e9:.0f} GFLOP/s'
    return Measured(text, share >= 0.8, {**run, 'share': share})


def quick_bars() -> list[Bar]:
    """Return the first lines of the table, which take a few minutes together."""
    at_224: dict[str, Any] = dict(size=(224, 224), repetitions=REPETITIONS[224])
    memory = 'peak memory above the weights, S12/8 inference'
    return [
        _faster('S12/8 inference, 800x1344', 's12', 8, 1.6, 1.8),
        _faster('S12/16 inference, 800x1344', 's12', 16, 1.4, 1.6, repetitions=7),
        _faster('S12/16 inference, 224x224', 's12', 16, 1.0, 1.1, **at_224),
        _memory(memory, 's12', 8, 0.55, '≤ 0.4x', 'infer'),
    ]


def other_bars() -> list[Bar]:
    """Return the rest of the table."""
    found = [_faster('M24/8 inference, 800x1344', 'm24', 8, 1.5, 1.8, repetitions=2)]
    for patch_size, bar, aim, repetitions in ((16, 1.25, 1.4, 5), (8, 1.2, 1.35, 2)):
        size = f'S12/{patch_size}'
        step, memory = f'{size} training step, 800x1344', f'peak memory of that step, {size}'
        least = f'peak memory with every recomputation, {size}'
        found += [
            _faster(step, 's12', patch_size, bar, aim, 'train', repetitions=repetitions),
            _memory(memory, 's12', patch_size, 0.55, '≤ 0.45x', 'train'),
            _memory(least, 's12', patch_size, 0.3, '', 'train', **RECOMPUTE),
            _recompute_time(patch_size, min(repetitions, 3)),
        ]
    for arch, side, batch, mode in SMALL:
        work = {'infer': 'inference', 'train': 'training step'}[mode]
        what = f'{arch.upper()}/16 {work}, {batch} of {side}x{side}'
        repetitions = REPETITIONS[384] if mode == 'infer' else 15
        found.append(_faster(what, arch, 16, 1.0, 1.2, mode, (side, side), repetitions, batch))
    at_224: dict[str, Any] = dict(size=(224, 224), repetitions=REPETITIONS[224])
    for arch in ('n12', 's12'):
        what = f'{arch.upper()}/16 inference, 224x224, our layers compiled'
        found.append(_faster(what, arch, 16, 1.0, 1.1, compiled=True, **at_224))
    at_224['repetitions'] = 5
    for arch in ('m24', 'l24'):
        rate = VARIANTS[arch].drop_path_rate
        what = f'{arch.upper()}/16 training step, 4 of 224x224, stochastic depth {rate:g}'
        found.append(
            _faster(what, arch, 16, 1.0, 1.2, 'train', batch=4, drop_path_rate=rate, **at_224)
        )
    growth = 'growth from 0.25 to 24 megapixels, S12/16: exponent in pixels'
    large = 'S12/8 with pyramid on one 6000x4000 image: process memory'
    share = "share of this machine's float32 matrix-multiply rate, S12/8 inference"
    return [
        *found,
        Bar(growth, '≤ 1.05', '≤ 1.02', _growth),
        Bar(large, '≤ 8 GB', '≤ 6 GB', _large_image),
        Bar(share, '≥ 80%', '≥ 88%', _share),
    ]
