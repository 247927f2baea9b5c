"""Without a private part of torch, the plain network runs, and nothing is lost but speed."""

import functools
import importlib
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from xcit_mm.models.fast import Execution, choose_execution, operators

from ...tiny import backbone

SOURCE = Path(operators.__file__).read_text(encoding='utf-8')
# The public parts that take their place are as good.
REPLACED = ('torch.nn.modules.batchnorm._BatchNorm', 'torch._check')
NAMES = [
    *re.findall(r"_find\('(torch\.[\w.]+)'", SOURCE),
    *(f'torch.nn.modules.module._global_{kind}_hooks'
      for kind in ('forward', 'forward_pre', 'backward', 'backward_pre')),
    *('torch.nn.Module._forward_hooks', 'torch.nn.Module._parameters'),
    *REPLACED,
]  # fmt: skip
ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def as_before():
    yield
    importlib.reload(operators)


class WithoutOperator:
    def __init__(self, name):
        self.lacking = name

    def __getattr__(self, name):
        if name == self.lacking:
            raise AttributeError(name)
        return getattr(ATEN, name)


def import_without(name):
    """Import the module as a torch would that lacks this name."""
    path, _, attribute = name.rpartition('.')
    owner = functools.reduce(getattr, path.split('.')[1:], torch)
    with pytest.MonkeyPatch.context() as patch:
        if owner is nn.Module:  # of each module, not of the class
            create = nn.Module.__init__

            def lacking(self):
                create(self)
                del self.__dict__[attribute]

            patch.setattr(nn.Module, '__init__', lacking)
        elif owner is ATEN:  # looked up when asked for
            patch.setattr(torch.ops, 'aten', WithoutOperator(attribute))
        else:
            patch.delattr(owner, attribute)
        importlib.reload(operators)


def results(model, images):
    torch.manual_seed(3)
    levels = model(images)
    sum(level.square().mean() for level in levels).backward()
    return [*levels, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize('name', NAMES)
def test_forward_and_backward_without_a_private_name(name):
    images, is_replaced = torch.randn(2, 3, 64, 48), name in REPLACED
    expected = results(backbone(fast=False).train(), images)
    import_without(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for options in ({}, dict(with_cp=True)):  # recomputation asks whether it is traced
            model = backbone(**options).train()
            assert (type(choose_execution(model)) is Execution) != is_replaced
            for actual, wanted in zip(results(model, images), expected, strict=True):
                torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
            with torch.no_grad():
                model.eval()(images)
    told = [str(w.message) for w in caught if 'lacks' in str(w.message)]
    assert len(told) == (not is_replaced), told
    assert all(name in text and 'plain network' in text for text in told)


def test_this_torch_has_all_parts():
    assert operators.MISSING == []
    assert len(NAMES) > 12
