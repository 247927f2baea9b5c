"""Maps between tokens are channels-last, as torch sees it when it chooses a kernel."""

import pytest
import torch

from xcit_mm.models.fast import map_to_tokens, tokens_to_map
from xcit_mm.models.fast.pyramid import rescale_for_training
from xcit_mm.models.layers import LPI

from ... import tiny

GRID, DIMS = (5, 6), 8


def strides(batch):
    shape = (batch, DIMS, *GRID)
    return torch.empty(shape).contiguous(memory_format=torch.channels_last).stride()


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('as_built', [True, False])
def test_maps_and_their_gradients_are_channels_last(batch, as_built):
    """In a batch of one, the first stride means nothing, but torch looks at it all the same."""
    tokens = torch.randn(batch, GRID[0] * GRID[1], DIMS, requires_grad=True)
    seen = {}
    lpi = LPI(DIMS, dict(type='BN'))
    for name in ('conv1', 'conv2'):

        def see(_, inputs, out, name=name):
            seen[name] = inputs[0].stride()
            out.register_hook(lambda grad: seen.update({f'{name} backward': grad.stride()}))

        getattr(lpi, name).register_forward_hook(see)
    if as_built:
        out = lpi(tokens, GRID)
    else:
        out = lpi.conv1(tokens_to_map(tokens, GRID))
        out = map_to_tokens(lpi.conv2(lpi.norm(out)))
    out.backward(torch.randn_like(out))
    # The gradient between the convolutions has the layout that they chose.
    assert seen.pop('conv1 backward')
    assert seen == dict.fromkeys(['conv1', 'conv2', 'conv2 backward'], strides(batch))


@pytest.mark.parametrize('batch', [1, 2])
def test_tokens_of_any_strides_become_a_map(batch):
    storage = torch.randn(batch, DIMS, GRID[0] * GRID[1])
    feature_map = tokens_to_map(storage.mT, GRID)
    assert feature_map.stride() == strides(batch)
    assert torch.equal(feature_map, storage.unflatten(2, GRID))
    assert torch.equal(map_to_tokens(feature_map), storage.mT)


def test_transposed_convolutions_are_trained_on_contiguous_maps():
    """On channels-last maps of a CPU, they take up to twice as long."""
    model = tiny.backbone('4 layers').train()
    tokens = torch.randn(2, GRID[0] * GRID[1], model.embed_dims, requires_grad=True)
    feature_map = tokens_to_map(tokens, GRID)
    layouts = []
    for level in model.pyramid.levels:
        handle = level.register_forward_pre_hook(
            lambda _, inputs: layouts.append(inputs[0].is_contiguous())
        )
        rescale_for_training(level, feature_map)
        handle.remove()
    assert layouts == [True, True, False, False]
