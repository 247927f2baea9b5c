"""Initializes a network from weights of another head or another number of channels."""

from typing import TYPE_CHECKING

import torch
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from mmengine.runner.checkpoint import load_state_dict
from torch import Tensor

from .formats import recognize, unwrap
from .hook import WeightsError
from .inputs import warn_about_inputs

if TYPE_CHECKING:
    from ..models.trunk import XCiTTrunk

STEM = 'patch_embed.layers.0.conv.weight'


@WEIGHT_INITIALIZERS.register_module()
class PretrainedXCiT:
    """mmengine's ``Pretrained`` for weights that do not fit as they are.

    Args:
        checkpoint (str): As for ``Pretrained``.
        head (bool): Whether the classifier's head is used; False for other classes than the
            file's. Defaults to True.
        inflate (bool): Whether the first convolution is inflated to the channels of the network,
            see :func:`inflate`. Defaults to False.
    """

    def __init__(self, checkpoint: str, head: bool = True, inflate: bool = False) -> None:
        self.checkpoint = checkpoint
        self.head = head
        self.inflate = inflate

    def __call__(self, module: 'XCiTTrunk') -> None:
        content = CheckpointLoader.load_checkpoint(self.checkpoint, map_location='cpu')
        recognized = recognize(unwrap(content))
        if recognized is None:
            raise WeightsError(f'{self.checkpoint} contains no XCiT in a known format')
        if recognized.format != 'own':
            warn_about_inputs(module.in_channels)
        state = recognized.state
        if not self.head:
            state = {n: tensor for n, tensor in state.items() if not n.startswith('head.')}
        if self.inflate and STEM in state:
            state[STEM] = inflate(state[STEM], module.in_channels)
        load_state_dict(module, state, strict=False, logger='current')


def inflate(weight: Tensor, channels: int) -> Tensor:
    """Return the weights of a first convolution for another number of channels.

    More channels take turns, and share the weights of the channel whose turn they take. Fewer
    channels each get an equal share of the sum of all. So images whose channels are equal give the
    same as before.

    Args:
        weight (Tensor): (d, C, h, w).
        channels (int): The number of channels to inflate or reduce it to.
    """
    given = weight.shape[1]
    if channels < given:
        return weight.sum(dim=1, keepdim=True).expand(-1, channels, -1, -1) / channels
    turns = torch.arange(channels) % given
    return weight[:, turns] / turns.bincount()[turns].view(-1, 1, 1)
