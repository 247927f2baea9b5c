"""Class attention without keys and values is class attention as it is written."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from xcit_mm.models import XCiTClassifier
from xcit_mm.models.fast import Execution, choose_execution

from ..cases import TINY, randomize
from ..rounding import bound, relative_error

ARCH = TINY['2 layers']


def classifier(arch=ARCH, **options):
    model = XCiTClassifier(arch, num_classes=3, **options)
    randomize(model)
    return model


def logits_and_gradients(model, tokens):
    tokens = tokens.clone().requires_grad_()
    logits = model.classify(tokens)
    parameters = [model.cls_token, *model.cls_layers.parameters()]
    return logits, torch.autograd.grad(logits.square().sum(), [tokens, *parameters])


@pytest.mark.parametrize('tokens_norm', [True, False])
@pytest.mark.parametrize('qkv_bias', [True, False])
def test_it_equals_the_plain_modules(tokens_norm, qkv_bias):
    """In double precision, where no difference hides: values and all gradients."""
    model = classifier(dict(**ARCH, tokens_norm=tokens_norm), qkv_bias=qkv_bias).double().train()
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


def test_it_is_used_with_and_without_autograd():
    model = classifier().eval()
    called = []
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(images)
        handle = model.cls_layers[0].attn.qkv.register_forward_hook(lambda *_: called.append(1))
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)
        assert called == [1]  # hooked: the plain modules ran
        handle.remove()
        assert type(choose_execution(model)) is not Execution
        model(images)
    model(images)
    assert called == [1]


def patch_attention(layer):
    layer.attn.attention_map = copy.copy(layer.attn.attention_map)


def change_norm(layer):
    layer.tokens_norm = not layer.tokens_norm


@pytest.mark.parametrize('change', [patch_attention, change_norm])
def test_a_changed_layer_is_called(change):
    model = classifier().eval()
    change(model.cls_layers[1])
    assert type(choose_execution(model)) is Execution


class Products(TorchDispatchMode):
    """Counts multiply-adds; torch's FlopCounterMode hooks all modules, so the plain ones run."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.count += flop_registry[func.overloadpacket](*args, out_val=result) // 2
        return result


def test_it_takes_no_product_of_all_tokens_with_a_square_matrix():
    dims, tokens = 128, torch.randn(1, 1000, 128)
    model = XCiTClassifier('n12', num_classes=0).eval()
    products = []
    for fast in (True, False):
        model.fast = fast
        with torch.no_grad(), Products() as counter:
            choose_execution(model).class_token(tokens)
        products.append(counter.count)
    both_layers = 2 * tokens.shape[1] * dims**2
    assert products[0] < 0.2 * both_layers < 2 * both_layers < products[1]
