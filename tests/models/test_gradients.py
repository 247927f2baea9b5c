"""The plain and the fast network have the gradients that finite differences show."""

import pytest
import torch

from xcit_mm.models import XCiT, XCiTClassifier

from .cases import TINY, randomize

STEP = 1e-6
# Of the size of the step's square and of the rounding of the loss over the step, each below 1e-8
# here, with room for losses that are small next to their terms.
TOLERANCE = 1e-6


def build(kind, **options):
    if kind == 'classifier':
        model = XCiTClassifier(TINY['2 layers'], 16, num_classes=5, **options)
    else:
        model = XCiT(TINY['2 layers'], 16, out_indices=(0, 1), strides=(4, 8), **options)
    randomize(model)
    return model.double().train()


@pytest.mark.parametrize('batch', [1, 2, 3])
@pytest.mark.parametrize('options', [dict(fast=True), dict(fast=False)], ids=['fast', 'plain'])
@pytest.mark.parametrize('kind', ['backbone', 'classifier'])
def test_gradients_equal_finite_differences(kind, options, batch):
    """In training, with stochastic depth, for each part of the network on its own."""
    model = build(kind, drop_path_rate=0.3, **options)
    images = torch.randn(batch, 3, 64, 48, dtype=torch.float64)

    def loss():
        torch.manual_seed(7)  # the same paths, and the same weights of the sum
        outputs = model(images)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return sum((output * torch.randn_like(output)).sum() for output in outputs)

    loss().backward()
    for name, part in model.named_children():
        parameters = list(part.parameters())
        directions = [torch.randn_like(p) for p in parameters]
        pairs = list(zip(parameters, directions, strict=True))
        expected = sum((p.grad * direction).sum() for p, direction in pairs)
        values = []
        with torch.no_grad():
            for step in (STEP, -2 * STEP):
                for p, direction in pairs:
                    p += step * direction
                values.append(loss())
            for p, direction in pairs:
                p += STEP * direction
        difference = (values[0] - values[1]) / (2 * STEP)
        torch.testing.assert_close(
            expected, difference, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m, n=name: f'{n}: {m}'
        )
