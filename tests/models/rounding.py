"""How far two ways to compute the same numbers may be apart: from the arithmetic, not from a CPU.

Libraries add the terms of a product in different orders, with and without fused multiply-adds, so
that two exact formulas agree only up to rounding. A sum of n rounded terms is off by about u·√n,
relative to the norms of its factors, with u half the distance from 1 to the next number (Higham and
Mary, 2019: rounding errors behave like independent random numbers). Errors of one sum after another
add up. FACTOR covers what the estimate leaves out: the constants in front of √n, divisions and
exponentials.
"""

import math

import torch

FACTOR = 8


def bound(dtype: torch.dtype, *lengths: int) -> float:
    """Bound of the relative error of a result after sums of these lengths, one after another."""
    return FACTOR * torch.finfo(dtype).eps / 2 * sum(math.sqrt(n) for n in lengths)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what was expected, computed in double precision."""
    actual, expected = actual.detach().double(), expected.detach().double()
    return ((actual - expected).norm() / expected.norm().clamp_min(1e-30)).item()
