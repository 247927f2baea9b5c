"""Under autocast, a layer adds what it adds in full precision, however small LayerScale is."""

import pytest
import torch

from xcit_mm.models import XCiT
from xcit_mm.models.fast import Execution
from xcit_mm.models.fast.execution import Differentiable, Inference

from ...tiny import randomize
from ..cases import HALVES, pieces
from ..rounding import relative_error

GAMMA = 1e-5  # the paper's initial value for 24 layers, and the least
LOSS_SCALE = 2.0**16  # where torch's GradScaler starts
GRID = (12, 14)
# The longest chain of a branch rounds its tokens and, after each of its steps, the result: LN, qkv,
# two norms, products, softmax, attended, projection, and three weights; backward doubles it.
ROUNDINGS = 12

FORMS = pytest.mark.parametrize('attention', ['token', 'covariance'])
BRANCHES = {'gamma1': 'xca', 'gamma3': 'lpi', 'gamma2': 'ffn'}


def tolerance(dtype, roundings=ROUNDINGS):
    """Relative: each rounding is wrong by half a unit in the last place at most."""
    return roundings * torch.finfo(dtype).eps / 2


def build(**options):
    arch = dict(embed_dims=64, depth=3, num_heads=4)
    model = XCiT(arch, 16, out_indices=(2,), strides=(16,), drop_path_rate=0.0, **options)
    randomize(model)
    for layer in model.layers:
        for name in BRANCHES:
            torch.nn.init.constant_(getattr(layer, name), GAMMA)
    return model


def only(model, gamma):
    """A model whose first layer has one branch."""
    for name in BRANCHES:
        if name != gamma:
            torch.nn.init.zeros_(getattr(model.layers[0], name))
    return model


def tokens():
    x = torch.randn(2, GRID[0] * GRID[1], 64, generator=torch.Generator().manual_seed(3))
    return x / 64  # small, so that adding the branch loses none of its digits


@FORMS
@pytest.mark.parametrize('gamma', BRANCHES)
@pytest.mark.parametrize('piece', [0, 2])
@pytest.mark.parametrize('dtype', HALVES)
def test_a_branch_in_inference(dtype, piece, gamma, attention):
    model, x = only(build(attention=attention), gamma).eval(), tokens()
    with torch.no_grad(), pieces(piece):
        exact = Execution(model.double()).run_layer(0, x.double(), GRID) - x
        with torch.autocast('cpu', dtype):
            low = Inference(model.float()).run_layer(0, x.clone(), GRID) - x
    assert relative_error(low, exact) < tolerance(dtype)


@FORMS
@pytest.mark.parametrize('gamma', BRANCHES)
@pytest.mark.parametrize('options', [{}, dict(recompute_ffn=True), dict(with_cp=True)])
@pytest.mark.parametrize('dtype', HALVES)
def test_a_branch_and_its_gradients_in_training(dtype, options, gamma, attention):
    model, x = only(build(attention=attention, **options), gamma).train(), tokens()
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(4)) * LOSS_SCALE
    branch = getattr(model.layers[0], BRANCHES[gamma])

    def results(execution, x, **autocast):
        x = x.clone().requires_grad_()
        with torch.autocast('cpu', **autocast), pieces(2):
            added = execution.run_layer(0, x, GRID) - x
        inputs = [x, getattr(model.layers[0], gamma), *branch.parameters()]
        return added, *torch.autograd.grad(added, inputs, gradient.to(x.dtype))

    exact = results(Execution(model.double()), x.double(), enabled=False)
    low = results(Differentiable(model.float()), x, dtype=dtype)
    largest = max(expected.norm() for expected in exact[3:])
    for actual, expected in zip(low, exact, strict=True):
        if expected.norm() > 1e-3 * largest:  # what is left of a bias before a norm is rounding
            assert relative_error(actual, expected) < tolerance(dtype, 2 * ROUNDINGS)


@FORMS
@pytest.mark.parametrize('grad', [False, True])
@pytest.mark.parametrize('dtype', HALVES)
def test_all_layers_of_a_backbone(dtype, grad, attention):
    model = build(attention=attention).eval()
    model.patch_embed.layers[-1].norm.weight.data.div_(64)
    model.patch_embed.layers[-1].norm.bias.data.div_(64)
    model.pos_embed.projection.weight.data.div_(64)
    model.pos_embed.projection.bias.data.div_(64)
    images = torch.randn(2, 3, 96, 112, generator=torch.Generator().manual_seed(3))

    def added():
        outputs = [x.clone() for x, _ in model.trunk_outputs(images.to(model.layers[0].gamma1))]
        return outputs[-1] - outputs[0]

    with torch.set_grad_enabled(grad):
        with torch.autocast('cpu', dtype):
            low = added()
        model.double().fast = False
        exact = added()
    # The stem rounds as well: weights and results of four convolutions and norms.
    assert relative_error(low, exact) < tolerance(dtype, 2 * ROUNDINGS)
