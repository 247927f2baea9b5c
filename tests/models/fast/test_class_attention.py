"""Class attention without keys and values is class attention as it is written."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from xcit_mm.models import XCiTClassifier
from xcit_mm.models.fast import choose_execution

from ...tiny import TINY, classifier
from ..rounding import bound, relative_error


def logits_and_gradients(model, tokens):
    tokens = tokens.clone().requires_grad_()
    logits = model.classify(tokens)
    parameters = [model.cls_token, *model.cls_layers.parameters()]
    return logits, torch.autograd.grad(logits.square().sum(), [tokens, *parameters])


@pytest.mark.parametrize('tokens_norm', [True, False])
@pytest.mark.parametrize('qkv_bias', [True, False])
def test_it_equals_the_plain_modules(tokens_norm, qkv_bias):
    """In double precision, where no difference hides: values and all gradients."""
    arch = dict(TINY['2 layers'], tokens_norm=tokens_norm)
    model = classifier(arch, qkv_bias=qkv_bias).double().train()
    tokens = torch.randn(4, 35, 16, dtype=torch.float64)
    fast = logits_and_gradients(model, tokens)
    model.fast = False
    plain = logits_and_gradients(model, tokens)
    # Widths of two layers, each with four products, and of their backward pass.
    tolerance = bound(torch.float64, *(64,) * 24)
    assert relative_error(fast[0], plain[0]) < tolerance
    # A key's bias is the same for all tokens, so its gradient is rounding in one of the two.
    scale = max(float(gradient.norm()) for gradient in plain[1])
    for a, b in zip(fast[1], plain[1], strict=True):
        assert float((a - b).norm()) < tolerance * scale


class Products(TorchDispatchMode):
    """Counts multiply-adds; torch's FlopCounterMode hooks all modules, so the plain ones run."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.count += flop_registry[func.overloadpacket](*args, out_val=result) // 2
        return result


@pytest.mark.parametrize('grad', [True, False])
def test_it_takes_no_product_of_all_tokens_with_a_square_matrix(grad):
    dims, tokens = 128, torch.randn(1, 1000, 128)
    model = XCiTClassifier('n12', num_classes=0).eval()
    products = []
    for fast in (True, False):
        model.fast = fast
        with torch.set_grad_enabled(grad), Products() as counter:
            choose_execution(model).class_token(tokens)
        products.append(counter.count)
    both_layers = 2 * tokens.shape[1] * dims**2
    assert products[0] < 0.2 * both_layers < 2 * both_layers < products[1]
