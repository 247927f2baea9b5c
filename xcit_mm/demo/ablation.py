"""The control of the demo: the same training without cross-covariance attention."""

from typing import Any, cast

from mmengine.registry import MODELS
from torch import nn

from ..models import XCiT


@MODELS.register_module()
class XCiTWithoutXCA(XCiT):
    """XCiT whose attention adds nothing, the first line of the paper's ablation table.

    Args:
        *args: As :class:`XCiT`.
        **kwargs: As :class:`XCiT`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silence()

    def init_weights(self) -> None:
        super().init_weights()
        self._silence()

    def _silence(self) -> None:
        for layer in self.layers:
            nn.init.zeros_(cast(nn.Parameter, layer.gamma1)).requires_grad_(False)
