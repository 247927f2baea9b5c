"""Parity with timm's XCiT, an independent implementation, with its own random weights."""

import pytest
import torch

from xcit_mm.models import VARIANTS, XCiT, XCiTClassifier

timm = pytest.importorskip('timm')

NAMES = {'n': 'nano', 't': 'tiny', 's': 'small', 'm': 'medium', 'l': 'large'}
# The two widest run with fewer layers; they differ only in width and heads.
FEW_LAYERS = {'m24': 6, 'l24': 4}
SIZES = ((64, 64), (61, 93))
# The plain modules, and the fast execution in both forms of attention.
EXECUTIONS = ((False, 'auto'), (True, 'token'), (True, 'covariance'))


def timm_model(arch, patch_size):
    torch.manual_seed(0)
    depth = FEW_LAYERS.get(arch, VARIANTS[arch].depth)
    name = f'xcit_{NAMES[arch[0]]}_{arch[1:]}_p{patch_size}_224'
    model = timm.create_model(name, pretrained=False, depth=depth).eval()
    # LayerScale of 1e-5 would hide every layer, and initial BatchNorm statistics do nothing.
    for parameter_name, parameter in model.named_parameters():
        if 'gamma' in parameter_name:
            torch.nn.init.uniform_(parameter, 0.1, 0.5)
        elif 'temperature' in parameter_name:
            torch.nn.init.uniform_(parameter, 0.5, 2)
    for buffer_name, buffer in model.named_buffers():
        if 'running_mean' in buffer_name:
            torch.nn.init.normal_(buffer, std=0.1)
        elif 'running_var' in buffer_name:
            torch.nn.init.uniform_(buffer, 0.5, 2)
    return model, depth


def error(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('arch', list(VARIANTS))
def test_features_and_logits_equal_timm(arch, patch_size):
    reference, depth = timm_model(arch, patch_size)
    layers = (3, 5, 7, 11) if depth == 12 else (7, 11, 15, 23)
    layers = layers if depth in (12, 24) else tuple(range(depth - 4, depth))
    ours = {**VARIANTS[arch].__dict__, 'depth': depth}
    classifier = XCiTClassifier(ours, patch_size).eval()
    backbone = XCiT(ours, patch_size, out_indices=layers, pyramid=False).eval()
    for model in (classifier, backbone):
        model.load_state_dict(reference.state_dict())
    for size in SIZES:
        images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = reference.forward_intermediates(
                images, indices=list(layers), intermediates_only=True
            )
            logits = reference(images)
        for fast, attention in EXECUTIONS:
            for model in (classifier, backbone):
                model.fast, model.attention = fast, attention
            with torch.no_grad():
                for actual, feature in zip(backbone(images), expected, strict=True):
                    assert error(actual, feature) < 1e-4
                assert error(classifier(images), logits) < 1e-4
