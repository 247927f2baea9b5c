"""Many tensors in few operators, with the results of one after another."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from xcit_mm.engine.foreach import copy_all, norms_of, scale_all


class Operators(TorchDispatchMode):
    """Collects the names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def tensors(count):
    draw = torch.Generator().manual_seed(count)
    return [torch.randn(size % 4, 3, generator=draw) for size in range(count)]


def run_all(count):
    """Return norms, scaled tensors and copies of two types."""
    scaled, norms = tensors(count), norms_of(tensors(count))
    scale_all(scaled, torch.arange(count) / 2)
    sources = [*tensors(count), *(torch.tensor(i) for i in range(count))]
    copies = [torch.empty_like(source) for source in sources]
    copy_all(sources, copies)
    return norms, scaled, sources, copies


@pytest.mark.parametrize('is_missing', [False, True])
def test_results_are_those_of_one_after_another(is_missing, monkeypatch):
    if is_missing:
        for name in ('_foreach_norm', '_foreach_mul_', '_foreach_copy_'):
            monkeypatch.delattr(torch, name)
    norms, scaled, sources, copies = run_all(9)
    assert all(map(torch.equal, copies, sources))
    for number, tensor in enumerate(tensors(9)):
        assert torch.equal(scaled[number], tensor * (number / 2))
        # Sums of at most nine squares.
        expected = torch.linalg.vector_norm(tensor.double()).float()
        torch.testing.assert_close(norms[number], expected, rtol=9 * 2**-23, atol=0)


@pytest.mark.parametrize(
    'function',
    [
        norms_of,
        lambda many: scale_all(many, torch.ones(len(many))),
        lambda many: copy_all(many, [tensor.clone() for tensor in many]),
    ],
)
def test_more_tensors_take_no_more_operators(function):
    counts = []
    for count in (2, 50):
        many = tensors(count)
        with Operators() as operators:
            function(many)
        counts.append(sum('clone' not in name for name in operators.names))
    assert counts[0] == counts[1]
