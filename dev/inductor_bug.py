"""``python -m dev.inductor_bug``: whether Inductor can compile a depth-wise convolution of tokens.

It fails for changing image sizes (pytorch issues 172204 and 185510), which is why
:mod:`xcit_mm.models.fast.compiled` hides these convolutions from it. Exit status 1 if it does.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEM, DEPTHWISE = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)


def train(tokens: Tensor, height: int, width: int) -> Tensor:
    """Save a channels-last view of tokens for backward."""
    feature_map = (tokens * 2).transpose(1, 2).unflatten(2, (height, width))
    return F.gelu(DEPTHWISE(feature_map))


def infer(images: Tensor) -> Tensor:
    """Derive the grid of the tokens from the images, in the same graph."""
    x = STEM(images)
    tokens = F.layer_norm(x.flatten(2).transpose(1, 2), (8,))
    return DEPTHWISE(tokens.transpose(1, 2).unflatten(2, x.shape[2:]))


def main() -> int:
    tokens, images = torch.randn(2, 24, 8, requires_grad=True), torch.randn(2, 3, 16, 24)
    failures = 0
    for function, arguments in ((train, (tokens, 4, 6)), (infer, (images,))):
        try:
            with torch.set_grad_enabled(function is train):
                torch.compile(function, dynamic=True)(*arguments)
            print(f'{function.__name__}: compiled')
        except RuntimeError as error:
            failures += 1
            print(f'{function.__name__}: {str(error).splitlines()[0]}')
    return int(failures > 0)


if __name__ == '__main__':
    sys.exit(main())
