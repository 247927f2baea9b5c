"""The part that backbone and classifier share: stem, position encoding and layers."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch.fx
from mmengine.model import BaseModule
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..errors import TooSmallError
from ..weights.hook import (
    allow_missing_pyramid,
    register_load_hook,
    strict_loading,
    translate_state_dict,
)
from .fast import (
    FORMS,
    BatchNorm,
    Execution,
    check_compiler,
    choose_execution,
    is_compiled_by_user,
    recomputed,
)
from .layers import ConvPatchEmbed, SinusoidalPositionEncoding, XCiTLayer
from .variants import Variant


class XCiTTrunk(BaseModule):
    """Images to tokens through all layers; see :class:`XCiT` for the arguments."""

    def __init__(
        self,
        variant: Variant,
        *,
        patch_size: int,
        in_channels: int = 3,
        mlp_ratio: float = 4,
        qkv_bias: bool = True,
        drop_path_rate: float | None = None,
        layer_scale_init: float | None = None,
        norm_cfg: dict = dict(type='BN'),  # noqa: B006  a config value, never changed
        norm_eval: bool = False,
        frozen_stages: int = -1,
        with_cp: bool = False,
        recompute_ffn: bool = False,
        attention: str = 'auto',
        fast: bool = True,
        compile: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg)
        if not -1 <= frozen_stages <= variant.depth:
            raise ValueError(
                f'frozen_stages must be in -1...{variant.depth}, not {frozen_stages}: -1 freezes '
                'nothing, 0 the stem, i the stem and the first i layers'
            )
        if attention not in FORMS:
            raise ValueError(f'attention must be one of {", ".join(FORMS)}, not {attention!r}')
        if compile:
            check_compiler()
            if not fast:
                raise ValueError('compile=True needs fast=True: it compiles the fast execution')
        self.variant = variant
        self.embed_dims = variant.embed_dims
        self.mlp_ratio = mlp_ratio
        self.qkv_bias = qkv_bias
        self.patch_size = patch_size
        self.in_channels = in_channels
        self.norm_eval = norm_eval
        self.frozen_stages = frozen_stages
        self.drop_path_rate = _default(drop_path_rate, variant.drop_path_rate)
        self.layer_scale_init = _default(layer_scale_init, variant.layer_scale_init)
        self.with_cp = with_cp
        self.recompute_ffn = recompute_ffn
        self.attention = attention
        self.fast = fast
        self.compiled = compile  # not compile, which is a method of every module
        self.as_built: list[tuple] = []  # its fingerprint, set once all parts exist
        self.patch_embed = ConvPatchEmbed(in_channels, self.embed_dims, patch_size, norm_cfg)
        self.pos_embed = SinusoidalPositionEncoding(self.embed_dims)
        self.layers = nn.ModuleList(
            XCiTLayer(
                self.embed_dims,
                num_heads=variant.num_heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                drop_path_rate=self.drop_path_rate,
                layer_scale_init=self.layer_scale_init,
                norm_cfg=norm_cfg,
            )
            for _ in range(variant.depth)
        )
        register_load_hook(self, translate_state_dict)
        self.register_load_state_dict_post_hook(allow_missing_pyramid)
        self._freeze_stages()

    def forward(self, images: Tensor) -> Any:
        """Run images (B, C, H, W), by the execution that suits the state of the network."""
        if self.fast and is_compiled_by_user():
            from .fast.compiled import run_in_regions

            return run_in_regions(self, images)
        return self.run(images, choose_execution(self, images))

    def run(self, images: Tensor, execution: Execution) -> Any:
        """Run images by an execution."""
        raise NotImplementedError

    def trunk_outputs(
        self, images: Tensor, execution: Execution | None = None
    ) -> Iterator[tuple[Tensor, tuple[int, int]]]:
        """Yield the tokens (B, N, d) after the stem and after each layer, with their grid.

        Without autograd, the next layer overwrites the tokens: copy what you keep.

        Args:
            images (Tensor): (B, C, H, W), at least one patch in size.
            execution (Execution, optional): How the layers are run. Defaults to None, chosen for
                the state of the network and of torch.
        """
        self._check_images(images)
        execution = execution or choose_execution(self, images)
        x, grid = execution.embed(images)
        yield x, grid
        for index in range(len(self.layers)):
            x = execution.run_layer(index, x, grid)
            yield x, grid

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Turn images (B, C, H, W) into tokens (B, N, d) with positions, and return their grid."""
        x, grid = self.patch_embed(images)
        return x + self.pos_embed(*grid), grid

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Run tokens through a layer, which backward recomputes if ``with_cp`` is set."""
        layer = self.layers[index]
        return recomputed(layer, layer, x, grid, random=True) if self.with_cp else layer(x, grid)

    def train(self, mode: bool = True) -> 'XCiTTrunk':
        """Set the mode; frozen parts and, with ``norm_eval``, BatchNorm stay in eval mode."""
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
        return self

    def init_weights(self) -> None:
        """Draw linear layers from truncated normals; LayerScale was set at construction."""
        for module in () if self.is_init else self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        with strict_loading():
            super().init_weights()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load as torch does; a ``strict`` error names the format and groups what does not fit."""
        with strict_loading(strict):
            return super().load_state_dict(state_dict, strict, assign)

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return the depth of a parameter, for layer-wise learning rates.

        Args:
            param_name (str): Its full name.
            prefix (str): Prefix of this module's parameters in that name.

        Returns:
            tuple[int, int]: 0 for the stem, i for layer i (from 1), one more than the number of
            layers for everything else; and the number of these depths.
        """
        num_depths = len(self.layers) + 2
        if not param_name.startswith(prefix):
            return num_depths - 1, num_depths
        first, _, rest = param_name[len(prefix) :].partition('.')
        if first in ('patch_embed', 'pos_embed'):
            return 0, num_depths
        if first == 'layers':
            return int(rest.split('.')[0]) + 1, num_depths
        return num_depths - 1, num_depths

    def _freeze_stages(self) -> None:
        if self.frozen_stages < 0:
            return
        stem: list[nn.Module] = [self.patch_embed, self.pos_embed]
        for module in [*stem, *self.layers[: self.frozen_stages]]:
            module.eval()
            for parameter in module.parameters():
                parameter.requires_grad = False

    def _check_images(self, images: Any) -> None:
        if isinstance(images, torch.fx.Proxy):
            return  # a tracer's stand-in, whose size is not known
        if not isinstance(images, Tensor):
            raise TypeError(f'images must be a Tensor, not {type(images).__name__}')
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ValueError(
                f'images must have the shape (batch, {self.in_channels}, height, width), not '
                f'{tuple(images.shape)}'
            )
        if not images.is_floating_point():
            raise TypeError(f'images must be floating-point numbers, not {images.dtype}')
        if min(images.shape[2:]) < self.patch_size:
            raise TooSmallError(
                f'images must be at least one patch in size, {self.patch_size}x{self.patch_size}, '
                f'not {images.shape[2]}x{images.shape[3]}'
            )


def _default(value: float | None, default: float) -> float:
    return default if value is None else value
