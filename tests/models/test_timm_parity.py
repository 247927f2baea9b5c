"""Parity with timm's XCiT, an independent implementation, with its own random weights."""

import dataclasses

import pytest
import torch

from xcit_mm.models import VARIANTS, XCiT, XCiTClassifier
from xcit_mm.models.variants import FEATURE_LAYERS, resolve_variant
from xcit_mm.weights import recognize

timm = pytest.importorskip('timm')

NAMES = {'n': 'nano', 't': 'tiny', 's': 'small', 'm': 'medium', 'l': 'large'}
MODELS = [(arch, patch_size) for arch in VARIANTS for patch_size in (8, 16)]
# The widest run with fewer layers, and whole in long tests.
FEW_LAYERS = {'s24': 8, 'm24': 6, 'l24': 4}
SIZES = ((64, 64), (61, 93))
# fast, attention, with_cp: the plain modules, and the fast execution in both forms of attention.
EXECUTIONS = ((False, 'auto', False), (True, 'token', False), (True, 'covariance', False))


def build(arch, patch_size, depth=None):
    """timm's network, and our classifier and backbone with the same weights."""
    variant = resolve_variant(arch, patch_size)
    variant = dataclasses.replace(variant, depth=depth or variant.depth)
    torch.manual_seed(0)
    name = f'xcit_{NAMES[arch[0]]}_{arch[1:]}_p{patch_size}_224'
    reference = timm.create_model(
        name, depth=variant.depth, drop_path_rate=variant.drop_path_rate
    ).eval()
    # LayerScale of 1e-5 would hide every layer, and initial BatchNorm statistics do nothing.
    for parameter_name, parameter in reference.named_parameters():
        if 'gamma' in parameter_name:
            torch.nn.init.uniform_(parameter, 0.1, 0.5)
        elif 'temperature' in parameter_name:
            torch.nn.init.uniform_(parameter, 0.5, 2)
    for buffer_name, buffer in reference.named_buffers():
        if 'running_mean' in buffer_name:
            torch.nn.init.normal_(buffer, std=0.1)
        elif 'running_var' in buffer_name:
            torch.nn.init.uniform_(buffer, 0.5, 2)
    layers = FEATURE_LAYERS.get(variant.depth, tuple(range(variant.depth))[-4:])
    classifier = XCiTClassifier(vars(variant), patch_size).eval()
    backbone = XCiT(vars(variant), patch_size, out_indices=layers, pyramid=False).eval()
    for model in (classifier, backbone):
        model.load_state_dict(reference.state_dict())
    return reference, classifier, backbone


def features_and_logits(reference, images, layers):
    tokens, features = reference.forward_intermediates(images, indices=list(layers))
    return features, reference.forward_head(tokens)


def error(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


def check_inference(arch, patch_size, depth, sizes):
    reference, classifier, backbone = build(arch, patch_size, depth)
    for size in sizes:
        images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            features, logits = features_and_logits(reference, images, backbone.out_indices)
        for fast, attention, _ in EXECUTIONS:
            for model in (classifier, backbone):
                model.fast, model.attention = fast, attention
            with torch.no_grad():
                for actual, expected in zip(backbone(images), features, strict=True):
                    assert error(actual, expected) < 1e-4
                assert error(classifier(images), logits) < 1e-4


@pytest.mark.parametrize('arch, patch_size', MODELS)
def test_features_and_logits_equal_timm(arch, patch_size):
    check_inference(arch, patch_size, FEW_LAYERS.get(arch), SIZES)


@pytest.mark.long
@pytest.mark.parametrize('arch, patch_size', [m for m in MODELS if m[0] in FEW_LAYERS])
def test_features_and_logits_of_the_widest_equal_timm_with_all_layers(arch, patch_size):
    check_inference(arch, patch_size, None, [(45, 61)])


def gradients(outputs, inputs):
    """Gradients of a loss in which every number of the outputs has another weight."""
    random = torch.Generator().manual_seed(2)
    weights = [torch.randn(each.shape, generator=random, dtype=each.dtype) for each in outputs]
    loss = sum((each * weight).sum() for each, weight in zip(outputs, weights, strict=True))
    return torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)


WIDE = [pytest.param(*m, marks=pytest.mark.long) for m in (('s24', 16), ('m24', 16), ('l24', 8))]


@pytest.mark.parametrize('arch, patch_size', [('t24', 16), ('s12', 16), *WIDE])
def test_training_with_the_papers_stochastic_depth_equals_timm(arch, patch_size, monkeypatch):
    """Two layers: outputs and gradients with the same draws, up to timm's float32 positions."""
    networks = build(arch, patch_size, depth=2)
    reference, classifier, backbone = (network.double().train() for network in networks)
    images = torch.randn(8, 3, 32, 48, dtype=torch.float64, requires_grad=True)
    masks = []

    def draw_like_mmcv(mask, probability):
        """``Tensor.bernoulli_``, with which timm drops paths, from the numbers that mmcv draws."""
        masks.append(mask.copy_((probability + torch.rand_like(mask)).floor_()))
        return mask.clone()

    torch.manual_seed(3)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, 'bernoulli_', draw_like_mmcv)
        features, logits = features_and_logits(reference, images, backbone.out_indices)
    after_draws = torch.get_rng_state()
    assert len(masks) == 3 * len(backbone.layers)  # none in class attention
    assert set(torch.cat(masks).flatten().tolist()) == {0, 1}
    for model, outputs in ((backbone, features), (classifier, [logits])):
        image_gradient, *others = gradients(outputs, [images, *reference.parameters()])
        names = (name for name, _ in reference.named_parameters())
        expected = recognize(dict(zip(names, others, strict=True))).state
        floor = 1e-3 * max(gradient.norm() for gradient in expected.values())
        for fast, attention, with_cp in (*EXECUTIONS, (True, 'auto', True)):
            model.fast, model.attention, model.with_cp = fast, attention, with_cp
            torch.manual_seed(3)
            actual = model(images) if model is backbone else [model(images)]
            assert torch.equal(torch.get_rng_state(), after_draws)
            for ours, theirs in zip(actual, outputs, strict=True):
                assert error(ours, theirs) < 1e-6
            image_actual, *others = gradients(actual, [images, *model.parameters()])
            assert error(image_actual, image_gradient) < 1e-6
            for (name, _), gradient in zip(model.named_parameters(), others, strict=True):
                # That of a bias before BatchNorm is only rounding: compare it with the largest.
                scale = max(expected[name].norm(), floor)
                assert (gradient - expected[name]).norm() < 1e-6 * scale, name
