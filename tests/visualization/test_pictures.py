"""The arrays behind the pictures match their definitions."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from xcit_mm.models import XCiTClassifier
from xcit_mm.visualization import (
    Normalize,
    class_attention,
    cross_covariance,
    pyramid_features,
    query_key_magnitude,
)
from xcit_mm.visualization.magnitude import magnitude_of_layer
from xcit_mm.visualization.pyramid import effective_factor, subtract_fixed_pattern

from .. import tiny


def layer_inputs(model, image):
    """Tokens before every layer, in float64, computed by the code for training."""
    model = model.double()
    x, grid = model.patch_embed(Normalize()(image).double())
    x = x + model.pos_embed(*grid)
    for layer in model.layers:
        yield layer, layer.norm1(x).detach(), grid
        x = layer(x, grid)
    model.float()


def token_form(layer, normed):
    """The paper's queries and keys, L2-normalized over the tokens: (h, N, d/h) each."""
    q, k, _ = F.linear(normed[0], layer.xca.qkv.weight, layer.xca.qkv.bias).chunk(3, -1)
    return [F.normalize(t, dim=0).unflatten(1, (layer.xca.num_heads, -1)) for t in (q, k)]


@pytest.mark.parametrize('kind', ['backbone', 'classifier', 'no bias'])
def test_magnitude_is_that_of_the_token_form(kind, request, image):
    if kind == 'no bias':
        model = tiny.backbone('n12', qkv_bias=False)
    else:
        model = request.getfixturevalue(kind)
    expected = []
    for layer, normed, grid in layer_inputs(model, image):
        both = [t.norm(dim=-1).t().unflatten(1, grid) for t in token_form(layer, normed)]
        expected.append(torch.stack(both).detach().numpy())
    per_head = query_key_magnitude(model, image, per_head=True)
    assert per_head.shape == (12, 2, 4, *grid) and per_head.dtype == np.float32
    np.testing.assert_allclose(per_head, expected, rtol=1e-5, atol=1e-6)
    averaged = query_key_magnitude(model, image, layers=[12, 3])
    np.testing.assert_allclose(averaged, np.mean(expected, axis=2)[[2, 11]], rtol=1e-5, atol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Records the number of bytes of the largest tensor that is made besides a given one."""

    def __init__(self, given):
        super().__init__()
        self.given, self.size = given.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            if storage.data_ptr() != self.given:
                self.size = max(self.size, storage.nbytes())
        return result


def test_no_queries_or_keys_are_stored(backbone):
    tokens = torch.randn(1, 30000, 128)
    with torch.no_grad(), LargestTensor(tokens) as largest:
        magnitude_of_layer(backbone.layers[0], tokens)
    assert 0 < largest.size < tokens.nbytes / 2


def test_cross_covariance_is_the_definition(backbone, image):
    expected = []
    for layer, normed, _ in layer_inputs(backbone, image):
        q, k = (t.permute(1, 2, 0) for t in token_form(layer, normed))
        expected.append((q @ k.mT * layer.xca.temperature).softmax(-1).detach().numpy())
    expected = np.array(expected)
    result = cross_covariance(backbone, image)
    np.testing.assert_allclose(result.attention, expected, rtol=1e-4, atol=1e-6)
    entropy = -(expected * np.log(expected)).sum(-1).mean(-1) / np.log(32)
    np.testing.assert_allclose(result.entropy, entropy, rtol=1e-5)
    assert entropy.min() > 0.1 and entropy.max() < 1
    for layer, temperature in zip(backbone.layers, result.temperature, strict=True):
        assert layer.xca.temperature.flatten().tolist() == pytest.approx(temperature.tolist())
    some = cross_covariance(backbone, image, layers=[2])
    np.testing.assert_array_equal(some.attention, result.attention[1:2])
    assert some.entropy.shape == (12, 4)


@pytest.mark.parametrize('size, arch', [('nano', 'n12'), ('tiny', 't12')])
@pytest.mark.parametrize('num_classes', [7, 0])
def test_class_attention_is_timms(size, arch, num_classes, image):
    timm = pytest.importorskip('timm')
    name = f'xcit_{size}_12_p16_224'
    reference = tiny.randomize(timm.create_model(name, num_classes=num_classes)).eval()
    expected = []
    for block in reference.cls_attn_blocks:
        block.attn.fused_attn = False  # the fused kernel does not return its attention
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: expected.append(out[0, :, 0]))
    with torch.no_grad():
        reference(Normalize()(image))
    model = XCiTClassifier(arch, patch_size=16, num_classes=num_classes)
    model.load_state_dict(reference.state_dict())
    maps = class_attention(model, image)
    assert maps.shape == (2, 4, 4, 6)
    expected = torch.stack(expected).numpy()
    np.testing.assert_allclose(maps.reshape(2, 4, -1), expected[..., 1:], rtol=1e-4, atol=1e-7)
    assert maps.std() > 0.1 * maps.mean()  # not uniform, so that the order of patches matters


@pytest.mark.parametrize('strides', [(4, 8, 16, 32), (8, 32)])
def test_pyramid_components_are_those_of_the_levels(strides, image):
    model = tiny.backbone('n12', strides=strides)
    levels = pyramid_features(model, image)
    with torch.no_grad():
        features = model(Normalize()(image))
    for level, (feature,), stride in zip(levels, features, strides, strict=True):
        assert level.stride == stride
        if stride < 16:  # without the pattern that repeats with every token
            subtract_fixed_pattern(feature, 16 // stride)
            assert feature[:, :: 16 // stride, 1 :: 16 // stride].mean((1, 2)).abs().max() < 1e-5
        flat = feature.flatten(1).double().t()
        flat -= flat.mean(0)
        _, values, vectors = torch.linalg.svd(flat, full_matrices=False)
        scores = np.abs((flat @ vectors[:3].t()).numpy()).reshape(*feature.shape[1:], 3)
        np.testing.assert_allclose(np.abs(level.components), scores, atol=1e-3 * scores.max())
        share = values[:3].square().sum() / values.square().sum()
        assert level.explained == pytest.approx(share.item(), abs=1e-5)
        colors = level.colors()
        assert colors.min() >= 0 and colors.max() <= 1 and colors.std() > 0.1


@pytest.mark.parametrize('size', [(64, 64), (37, 50)])
def test_a_map_enlarged_twofold_has_twice_the_effective_stride(size):
    noise = torch.randn(24, *size)
    factor = effective_factor(noise)
    assert 1 <= factor < 1.2
    twice = noise.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert effective_factor(twice) == pytest.approx(2 * factor, rel=1e-3)
    smooth = F.interpolate(torch.randn(1, 24, 4, 4), scale_factor=16, mode='bilinear')[0]
    assert effective_factor(smooth) > 6


def test_effective_stride_by_hand():
    # Half of the variance is between columns of width 1, half between halves of the map.
    stripes = torch.tensor([1.0, -1.0] * 4).expand(1, 8, 8)
    halves = torch.tensor([1.0] * 4 + [-1.0] * 4).expand(1, 8, 8)
    # Pooling by 2 leaves 1/2: 0.9 is 1/5 of the way there, on a logarithmic scale.
    assert effective_factor(stripes + halves) == pytest.approx(2**0.2)
    assert np.isnan(effective_factor(torch.full((3, 8, 8), 0.1)))
    assert np.isnan(effective_factor(torch.randn(3, 1, 1)))


PICTURES = {
    'backbone': (query_key_magnitude, cross_covariance, pyramid_features),
    'classifier': (query_key_magnitude, cross_covariance, class_attention),
}


def first(result):
    """The first array of a result."""
    return result if isinstance(result, np.ndarray) else first(result[0])


@pytest.mark.parametrize('kind', PICTURES)
def test_figures_on_request_and_the_model_is_left_as_it_was(kind, request, image):
    model = request.getfixturevalue(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    for function in PICTURES[kind]:
        array, figure = function(model, image, figure=True)
        assert isinstance(figure, Figure) and len(figure.axes) > 4
        np.testing.assert_array_equal(first(function(model, image)), first(array))
    assert model.training
    model.eval()
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_pictures_that_do_not_apply_are_explained(backbone, classifier, image):
    with pytest.raises(ValueError, match='no class attention'):
        class_attention(backbone, image)
    with pytest.raises(ValueError, match='no pyramid'):
        pyramid_features(classifier, image)
    for layers in ([0], [13], [], ['2']):
        with pytest.raises(ValueError, match=r'1\.\.\.12'):
            query_key_magnitude(backbone, image, layers=layers)
