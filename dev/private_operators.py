"""``python -m dev.private_operators``: the cost of public replacements for private operators.

Each row is a private operator of ``xcit_mm.models.fast.operators`` and the public code that could
replace it, on a chunk of tokens of the feed-forward network, alternating in one run.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from xcit_mm.models.fast.operators import (
    gelu_backward,
    layer_norm_backward,
    layer_norm_statistics,
)
from xcit_mm.tables import format_table

TOKENS, DIMS, REPETITIONS = 682, 384, 50


def public_backward(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a function, by a graph that is built for it."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, grad)[0]


def pairs() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """The private and the public version of each operator."""
    hidden, tokens = torch.randn(TOKENS, 4 * DIMS), torch.randn(TOKENS, DIMS)
    grad_hidden, grad_tokens = torch.randn_like(hidden), torch.randn_like(tokens)
    weight, bias = torch.rand(DIMS), torch.rand(DIMS)

    def private_norm() -> object:
        _, mean, rstd = layer_norm_statistics(tokens, weight, bias, 1e-6)
        return layer_norm_backward(grad_tokens, tokens, mean, rstd, weight, bias)

    def public_norm() -> object:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (tokens, weight, bias)]
            normed = F.layer_norm(leaves[0], (DIMS,), leaves[1], leaves[2], 1e-6)
            return torch.autograd.grad(normed, leaves, grad_tokens)

    return {
        'backward of GELU': (
            lambda: gelu_backward(grad_hidden, hidden),
            lambda: public_backward(F.gelu, hidden, grad_hidden),
        ),
        'LayerNorm and its backward': (private_norm, public_norm),
    }


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    argparse.ArgumentParser(prog='python -m dev.private_operators', description=__doc__).parse_args(
        argv
    )
    rows = []
    for name, ways in pairs().items():
        times: list[list[float]] = [[], []]
        for _ in range(REPETITIONS):
            for measured, way in zip(times, ways, strict=True):
                measured.append(seconds(way))
        private, public = (statistics.median(measured) for measured in times)
        rows.append(
            {
                'operator': name,
                'private ms': 1e3 * private,
                'public ms': 1e3 * public,
                'public / private': public / private,
            }
        )
    print(format_table(rows))
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
