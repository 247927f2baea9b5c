"""Why the layers are compiled without their maps: a bug of Inductor, which this test watches.

Once it passes with all supported versions of torch, ``xcit_mm/models/fast/compiled.py`` needs no
operator of its own. See pytorch issues 172204 and 185510.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.mark.long
@pytest.mark.xfail(reason='Inductor sorts symbolic strides without their ranges', strict=False)
def test_inductor_compiles_convolutions_of_tokens_for_training_at_any_size():
    convolutions = nn.Sequential(
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.GELU(),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
    )

    @torch.compile(dynamic=True)
    def run(tokens, height, width):
        feature_map = F.layer_norm(tokens, (8,)).transpose(1, 2).unflatten(2, (height, width))
        return convolutions(feature_map).flatten(2).transpose(1, 2)

    for height, width in ((4, 6), (5, 7)):
        tokens = torch.randn(2, height * width, 8, requires_grad=True)
        run(tokens, height, width).sum().backward()
