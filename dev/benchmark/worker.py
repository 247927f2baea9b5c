"""Runs one measurement in a separate process, so that measurements cannot disturb each other."""

import contextlib
import resource
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from dev.measure import Job, alternate, answer, memory_status, reset_peak, seconds
from xcit_mm.errors import is_out_of_memory

from .candidates import build, build_backbone, build_step, crops_like, share_weights
from .jobs import THREADS


def _build(job: Job, index: int = 0) -> nn.Module:
    return build(job['mode'], job['device'], job['candidates'][index])


def _step(job: Job, model: nn.Module) -> Callable[[], None]:
    return build_step(job['mode'], model, *job['size'], batch=job['batch'], device=job['device'])


def measure_several(job: Job) -> dict[str, Any]:
    """Time candidates in alternating order, ours on the weights of timm's if that is first."""
    models = [_build(job, i) for i in range(len(job['candidates']))]
    for other in models[1:]:
        share_weights(models[0], other)
    return {'times': alternate([_step(job, model) for model in models], job['repetitions'])}


def measure_agreement(job: Job) -> dict[str, Any]:
    """Return how much, relatively, loss and gradients of DINO on timm's XCiT and ours differ."""
    timm, ours, copy = (cast(Any, _build(job, i)) for i in (0, 1, 1))
    share_weights(timm, ours)
    crops = [crop.to(job['device']) for crop in crops_like(job['size'][0], job['batch'])]
    losses = [model.train().loss(*crops)['loss'] for model in (timm, ours)]
    for loss in losses:
        loss.backward()
    # timm's gradients travel as weights do, so that they get our names.
    with torch.no_grad():
        for parameter in timm.student.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else parameter)
    share_weights(timm, copy)
    pairs = zip(copy.student.parameters(), ours.student.parameters(), strict=True)
    both = [(theirs.detach(), mine.grad) for theirs, mine in pairs if mine.grad is not None]
    apart = torch.stack([(theirs - mine).square().sum() for theirs, mine in both]).sum().sqrt()
    length = torch.stack([mine.square().sum() for _, mine in both]).sum().sqrt()
    return {
        'loss': abs(float(losses[0] - losses[1])) / abs(float(losses[1])),
        'gradients': float(apart / length),
    }


def measure_one(job: Job) -> dict[str, Any]:
    """Measure times and peak memory of one candidate, or say that the memory does not suffice."""
    limit = job['memory_limit']
    if limit is None:
        return _measure_one(job)
    if job['device'] == 'cpu':
        # Otherwise Linux may kill this process or another one.
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit * 2**30),) * 2)
    try:
        return _measure_one(job)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {'out_of_memory': True}


def _measure_one(job: Job) -> dict[str, Any]:
    model = _build(job)
    # Load the kernels first, so that their memory is not counted.
    build_step(job['mode'], model, 64, 64, device=job['device'])()
    model.zero_grad(set_to_none=True)
    step = _step(job, model)
    before = _reset_peak(job['device'])
    times = [seconds(step)]
    on_cpu = job['device'] == 'cpu'
    peak = memory_status('VmHWM') if on_cpu else torch.cuda.max_memory_allocated() / 2**20
    times += [seconds(step) for _ in range(job['repetitions'] - 1)]
    return {'times': times, 'peak_MB': peak - before, 'process_MB': peak}


def _reset_peak(device: str) -> float:
    """Let the peak count from now on; return the memory in use, in MB."""
    if device == 'cpu':
        reset_peak()
        return memory_status('VmRSS')
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20


def measure_rate(job: Job) -> dict[str, Any]:
    """Measure the float32 matrix-multiply rate and, in the same run, a candidate's time."""
    step = _step(job, _build(job))
    size = 2048
    left, right = torch.randn(2, size, size, device=job['device'])
    rates, times = [], []

    def multiply() -> None:
        left @ right
        if job['device'] != 'cpu':
            torch.cuda.synchronize()

    step()
    for _ in range(job['repetitions']):
        rates += [2 * size**3 / seconds(multiply) for _ in range(5)]
        times.append(seconds(step))
    return {'rates': rates, 'times': times, 'flops': _flops(job)}


class _NoModules(contextlib.nullcontext):
    """Stands in for torch's tracker of modules, whose hooks would make the plain modules run."""

    parents = ('Global',)


def _flops(job: Job) -> int:
    """Count the floating-point operations of the products that our backbone really computes."""
    from torch.utils.flop_counter import FlopCounterMode, addmm_flop, baddbmm_flop

    def added(*shapes: Any, out_shape: Any = None) -> int:
        return addmm_flop(*shapes)

    def batch_added(*shapes: Any, out_shape: Any = None) -> int:
        return baddbmm_flop(*shapes)

    with torch.device('meta'):
        model = build_backbone(**job['candidates'][0]).eval()
        images = torch.empty(1, 3, *job['size'])
    # torch does not count products that are added in place.
    in_place = {torch.ops.aten.addmm_: added, torch.ops.aten.baddbmm_: batch_added}
    counter = FlopCounterMode(display=False, custom_mapping=in_place)
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with torch.no_grad(), counter:
        model(images)
    return counter.get_total_flops()


if __name__ == '__main__':
    torch.set_num_threads(THREADS)
    answer(
        {
            'several': measure_several,
            'agreement': measure_agreement,
            'one': measure_one,
            'rate': measure_rate,
        }
    )
