"""Inputs for mmcv's operators, and what a compiled mmcv makes of them: ``tests/data/mmcv_ops.npz``.

``python -m dev.operators`` writes the file; it needs a compiled mmcv. In every environment,
``tests/compat/test_mmcv_ops.py`` compares the operators in use with it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import xcit_mm  # noqa: F401

FILE = Path(__file__).parents[1] / 'tests' / 'data' / 'mmcv_ops.npz'
Tensors = dict[str, Tensor]
Case = Callable[[], Tensors]


def random_boxes(count: int, seed: int, size: float = 32) -> Tensor:
    """Return boxes within an image."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, 2, generator=generator) * size
    return torch.cat([corners.amin(1), corners.amax(1)], 1)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kept(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Tensors:
    """Return what a kind of NMS keeps."""
    dets, keep = function(*arguments, **settings)
    return {'dets': dets, 'keep': keep}


def nms_cases() -> Iterator[tuple[str, Case]]:
    from mmcv.ops import batched_nms, nms, soft_nms

    # The first two have an IoU of exactly 3 / 10.
    exact = torch.tensor([[0.0, 0, 10, 1], [0, 0, 3, 1], [20, 20, 21, 21]])
    sets = {
        'many': (random_boxes(200, 0), torch.rand(200, generator=torch.Generator().manual_seed(1))),
        'ties': (random_boxes(60, 2), torch.arange(60).remainder(4) / 4 + 0.1),
        'exact': (exact, torch.tensor([0.5, 0.4, 0.3])),
        'empty': (torch.zeros(0, 4), torch.zeros(0)),
    }
    for name, found in sets.items():
        for method in ('naive', 'linear', 'gaussian'):
            case = partial(kept, soft_nms, *found, method=method, min_score=0.05)
            yield f'soft_nms/{name}/{method}', case
        # mmcv sorts in an order that leaves open which of equal scores comes first.
        is_ordered, classes = name != 'ties', torch.arange(len(found[0])) % 3
        for offset, threshold in product((0, 1), (0.3, 0.7)) if is_ordered else ():
            yield f'nms/{name}/{offset}/{threshold}', partial(kept, nms, *found, threshold, offset)
        for kind in ('nms', 'soft_nms') if is_ordered else ('soft_nms',):
            if name != 'empty':
                cfg = dict(type=kind, iou_threshold=0.5)
                yield f'batched_nms/{name}/{kind}', partial(kept, batched_nms, *found, classes, cfg)


def with_gradients(
    function: Callable[..., Tensor],
    seed: int,
    inputs: Mapping[str, Tensor | None],
    *settings: Any,
    fixed: Sequence[str] = (),
) -> Tensors:
    """Return the output of a function, and the gradients of a random sum of it.

    Args:
        function (callable): The operator.
        seed (int): Seed of the weights of the sum.
        inputs (Mapping[str, Tensor]): Its first arguments, by name.
        *settings: The others.
        fixed (Sequence[str]): Inputs without a gradient.
    """
    given = {
        name: x if x is None or name in fixed else x.clone().requires_grad_()
        for name, x in inputs.items()
    }
    output = function(*given.values(), *settings)
    output.backward(numbers(*output.shape, seed=seed))
    grads = {f'grad_{n}': x.grad for n, x in given.items() if x is not None and x.grad is not None}
    return {'output': output.detach(), **grads}


def roi_align_cases() -> Iterator[tuple[str, Case]]:
    from mmcv.ops import roi_align

    boxes = random_boxes(12, 3, size=70) - 3  # some reach beyond the image, of 16 x 12 features
    boxes[-1, 2:] = boxes[-1, :2]  # a point
    image = torch.arange(12)[:, None] % 2
    features = {'input': numbers(2, 4, 16, 12, seed=4)}
    sets = {'many': torch.cat([image, boxes], 1), 'empty': torch.zeros(0, 5)}
    for name, aligned, ratio in product(sets, (True, False), (0, 2)):
        settings = (sets[name], (3, 2), 0.25, ratio, 'avg', aligned)
        case = partial(with_gradients, roi_align, 5, features, *settings)
        yield f'roi_align/{name}/avg/{aligned}/{ratio}', case


def deform_conv_cases() -> Iterator[tuple[str, Case]]:
    from mmcv.ops import deform_conv2d, modulated_deform_conv2d

    # name -> stride, padding, dilation, groups, groups of offsets, output height and width
    settings = {
        'plain': (1, 1, 1, 1, 1, 7, 6),
        'strided': (2, 1, 1, 2, 2, 4, 3),
        'dilated': (1, 2, 2, 1, 2, 7, 6),
    }
    for name, (*geometry, height, width) in settings.items():
        groups, offset_groups = geometry[3:]
        image = numbers(2, 4, 7, 6, seed=6)
        offset = numbers(2, offset_groups * 18, height, width, seed=7)
        weight = numbers(6, 4 // groups, 3, 3, seed=8)
        inputs = {'input': image, 'offset': offset, 'weight': weight}
        plain = partial(with_gradients, deform_conv2d, 10, inputs, *geometry)
        yield f'deform_conv/{name}', plain
        yield f'deform_conv_weight_only/{name}', partial(plain, fixed=('input', 'offset'))
        mask = numbers(2, offset_groups * 9, height, width, seed=9).sigmoid()
        inputs = {'input': image, 'offset': offset, 'mask': mask, 'weight': weight}
        for kind, bias in (('bias', numbers(6, seed=11)), ('no_bias', None)):
            given = {**inputs, 'bias': bias}
            case = partial(with_gradients, modulated_deform_conv2d, 10, given, *geometry)
            yield f'modulated_deform_conv/{name}/{kind}', case


def all_cases() -> dict[str, Case]:
    """Return every case by its name: operator/variant/..."""
    return dict([*nms_cases(), *roi_align_cases(), *deform_conv_cases()])


def main() -> int:
    ext = sys.modules.get('mmcv._ext')
    if ext is not None and ext.__name__ != 'mmcv._ext':
        print('error: This mmcv has no compiled operators.', file=sys.stderr)
        return 2
    arrays = {
        f'{name}:{key}': value.detach().numpy()
        for name, case in all_cases().items()
        for key, value in case().items()
    }
    np.savez_compressed(FILE, **arrays)  # type: ignore[arg-type]
    print(f'{FILE}: {len(all_cases())} cases, {FILE.stat().st_size / 1e3:.0f} kB')
    return 0


if __name__ == '__main__':
    sys.exit(main())
