"""Inputs for mmcv's operators, and what a compiled mmcv makes of them: ``tests/data/mmcv_ops.npz``.

``python -m dev.operators`` writes the file; it needs a compiled mmcv. In every environment,
``tests/compat/test_mmcv_ops.py`` compares the operators in use with it.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import xcit_mm  # noqa: F401

FILE = Path(__file__).parents[1] / 'tests' / 'data' / 'mmcv_ops.npz'
Tensors = dict[str, Tensor]
Case = Callable[[], Tensors]


def random_boxes(count: int, seed: int, size: float = 32) -> Tensor:
    """Boxes within an image."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, 2, generator=generator) * size
    return torch.cat([corners.amin(1), corners.amax(1)], 1)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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
    for name, (boxes, scores) in sets.items():
        # mmcv sorts in an order that leaves open which of equal scores comes first.
        for offset in () if name == 'ties' else (0, 1):
            for threshold in (0.3, 0.7):

                def hard(
                    b: Tensor = boxes, s: Tensor = scores, o: int = offset, t: float = threshold
                ) -> Tensors:
                    dets, keep = nms(b, s, t, offset=o)
                    return {'dets': dets, 'keep': keep}

                yield f'nms/{name}/{offset}/{threshold}', hard
        for method in ('naive', 'linear', 'gaussian'):

            def soft(b: Tensor = boxes, s: Tensor = scores, m: str = method) -> Tensors:
                dets, keep = soft_nms(b, s, method=m, min_score=0.05)
                return {'dets': dets, 'keep': keep}

            yield f'soft_nms/{name}/{method}', soft
        if len(boxes):
            for kind in ('soft_nms',) if name == 'ties' else ('nms', 'soft_nms'):

                def batched(b: Tensor = boxes, s: Tensor = scores, k: str = kind) -> Tensors:
                    classes = torch.arange(len(b)) % 3
                    cfg = dict(type=k, iou_threshold=0.5)
                    dets, keep = batched_nms(b, s, classes, cfg)
                    return {'dets': dets, 'keep': keep}

                yield f'batched_nms/{name}/{kind}', batched


def with_gradients(function: Callable[..., Tensor], seed: int, **inputs: Tensor) -> Tensors:
    """The output of a function, and the gradients of a random sum of it."""
    inputs = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    output = function(**inputs)
    output.backward(numbers(*output.shape, seed=seed))
    grads = {f'grad_{name}': x.grad for name, x in inputs.items() if x.grad is not None}
    return {'output': output.detach(), **grads}


def roi_align_cases() -> Iterator[tuple[str, Case]]:
    from mmcv.ops import roi_align

    boxes = random_boxes(12, 3, size=70) - 3  # some reach beyond the image, of 16 x 12 features
    boxes[-1, 2:] = boxes[-1, :2]  # a point
    image = torch.arange(12)[:, None] % 2
    sets = {'many': torch.cat([image, boxes], 1), 'empty': torch.zeros(0, 5)}
    for name, rois in sets.items():
        for aligned in (True, False):
            for ratio in (0, 2):

                def case(r: Tensor = rois, a: bool = aligned, s: int = ratio) -> Tensors:
                    return with_gradients(
                        lambda input: roi_align(input, r, (3, 2), 0.25, s, 'avg', a),
                        seed=5,
                        input=numbers(2, 4, 16, 12, seed=4),
                    )

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
        inputs = {
            'input': numbers(2, 4, 7, 6, seed=6),
            'offset': numbers(2, offset_groups * 18, height, width, seed=7),
            'weight': numbers(6, 4 // groups, 3, 3, seed=8),
        }
        mask = numbers(2, offset_groups * 9, height, width, seed=9).sigmoid()

        def plain(x: Tensors = inputs, g: list[int] = geometry) -> Tensors:
            def run(input: Tensor, offset: Tensor, weight: Tensor) -> Tensor:
                return deform_conv2d(input, offset, weight, *g)

            return with_gradients(run, seed=10, **x)

        yield f'deform_conv/{name}', plain

        def frozen(x: Tensors = inputs, g: list[int] = geometry) -> Tensors:
            def run(weight: Tensor) -> Tensor:
                return deform_conv2d(x['input'], x['offset'], weight, *g)

            return with_gradients(run, seed=10, weight=x['weight'])

        yield f'deform_conv_weight_only/{name}', frozen
        for bias in ({'bias': numbers(6, seed=11)}, {}):

            def modulated(
                x: Tensors = inputs, m: Tensor = mask, b: Tensors = bias, g: list[int] = geometry
            ) -> Tensors:
                def run(**tensors: Tensor) -> Tensor:
                    names = ('input', 'offset', 'mask', 'weight', 'bias')
                    return modulated_deform_conv2d(*(tensors.get(name) for name in names), *g)

                return with_gradients(run, seed=10, mask=m, **x, **b)

            yield f'modulated_deform_conv/{name}/{"bias" if bias else "no_bias"}', modulated


def all_cases() -> dict[str, Case]:
    """Every case by its name: operator/variant/..."""
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
