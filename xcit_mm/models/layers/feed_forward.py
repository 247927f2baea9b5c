"""The feed-forward network."""

from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F


class FeedForward(BaseModule):
    """Two linear layers with an exact GELU between them.

    Args:
        embed_dims (int): Width d of the tokens.
        hidden_dims (int): Width of the hidden layer.
    """

    def __init__(self, embed_dims: int, hidden_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of (B, N, d) by itself."""
        return self.fc2(F.gelu(self.fc1(x)))
