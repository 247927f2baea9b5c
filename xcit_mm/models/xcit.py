"""XCiT, the backbone for dense prediction."""

from typing import Any

from mmengine.registry import MODELS
from torch import Tensor

from .fast import Execution, fingerprint
from .pyramid import Pyramid
from .trunk import XCiTTrunk
from .variants import resolve_levels, resolve_variant, translate_released


@MODELS.register_module()
class XCiT(XCiTTrunk):
    """Cross-Covariance Image Transformer (arXiv 2106.09681) with a feature pyramid.

    The defaults of an ``arch`` are the paper's. Weights in any published format load as they are.

    Args:
        arch (str or dict): ``n12``, ``t12``, ``t24``, ``s12``, ``s24``, ``m24`` or ``l24``, or a
            dict with ``embed_dims``, ``depth``, ``num_heads`` and, optionally,
            ``layer_scale_init``, ``drop_path_rate`` and ``tokens_norm``. Defaults to ``s12``.
        patch_size (int): 8 or 16. Defaults to 16.
        in_channels (int): Channels of the images. Defaults to 3.
        mlp_ratio (float): Width of the feed-forward network over that of the tokens. Defaults to
            4.
        qkv_bias (bool): Whether queries, keys and values have biases. Defaults to True.
        out_indices (Sequence[int], optional): Zero-based layers that give the features.
            Defaults to None, the paper's for these ``strides``: (3, 5, 7, 11) or (7, 11, 15, 23)
            for 4, 8, 16, 32.
        strides (Sequence[int], optional): Strides of the levels of the pyramid, one for each of
            ``out_indices``, ascending, from 4, 8, 16, 32, 64. Defaults to None, (4, 8, 16, 32).
        drop_path_rate (float, optional): Stochastic depth, the same in every layer. Defaults to
            None, that of the ``arch``.
        layer_scale_init (float, optional): Initial value of LayerScale. Defaults to None, that of
            the ``arch``.
        norm_cfg (dict): Config of every BatchNorm: stem, local patch interaction, pyramid.
            Defaults to ``dict(type='BN')``.
        norm_eval (bool): Whether BatchNorm keeps its statistics in training. Defaults to False.
        frozen_stages (int): 0 freezes the stem, i the stem and the first i layers. Defaults to
            -1, nothing.
        with_cp (bool): Whether backward recomputes the layers, to save memory. On Linux, freed
            memory is also returned to the system between layers. Defaults to False.
        recompute_ffn (bool): Whether backward recomputes only the hidden layer of the feed-forward
            network, which is cheaper. ``with_cp`` includes it. The plain modules support
            only ``with_cp``. Defaults to False.
        pyramid (bool): Whether the features are rescaled to ``strides``. If not, they have the
            stride ``patch_size``. Defaults to True.
        attention (str): Form in which the fast execution computes attention: ``token``,
            ``covariance`` or ``auto``, the cheaper one. The result is the same. Defaults to
            ``auto``.
        fast (bool): Whether :mod:`xcit_mm.models.fast` may run the layers. If not, or if a module
            was hooked, wrapped or replaced or is being traced, the plain modules run. The
            result is the same. Defaults to True.
        compile (bool): Whether ``torch.compile`` compiles the layers: one graph for all layers,
            for images and batches of any size. Needs PyTorch 2.7 and a compiler for the device.
            The result is the same. Defaults to False.
        init_cfg (dict or list[dict], optional): Initialization config. Defaults to None.
        **released: The backbone arguments of the authors' released configs (``embed_dim``,
            ``depth``, ``num_heads``, ``eta``, ...) in place of ``arch``.

    Examples:
        >>> import torch
        >>> from xcit_mm.models import XCiT
        >>> model = XCiT('n12', patch_size=16).eval()
        >>> with torch.no_grad():
        ...     levels = model(torch.rand(1, 3, 64, 96))
        >>> [tuple(level.shape) for level in levels]
        [(1, 128, 16, 24), (1, 128, 8, 12), (1, 128, 4, 6), (1, 128, 2, 3)]
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 's12',
        patch_size: int = 16,
        *,
        in_channels: int = 3,
        mlp_ratio: float = 4,
        qkv_bias: bool = True,
        out_indices: tuple[int, ...] | list[int] | None = None,
        strides: tuple[int, ...] | list[int] | None = None,
        drop_path_rate: float | None = None,
        layer_scale_init: float | None = None,
        norm_cfg: dict = dict(type='BN'),  # noqa: B006  a config value, never changed
        norm_eval: bool = False,
        frozen_stages: int = -1,
        with_cp: bool = False,
        recompute_ffn: bool = False,
        pyramid: bool = True,
        attention: str = 'auto',
        fast: bool = True,
        compile: bool = False,
        init_cfg: dict | list[dict] | None = None,
        **released: Any,
    ) -> None:
        arch, in_channels = translate_released(arch, in_channels, released)
        variant = resolve_variant(arch, patch_size)
        out_indices, strides = resolve_levels(out_indices, strides, variant.depth, pyramid)
        super().__init__(
            variant,
            patch_size=patch_size,
            in_channels=in_channels,
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            drop_path_rate=drop_path_rate,
            layer_scale_init=layer_scale_init,
            norm_cfg=norm_cfg,
            norm_eval=norm_eval,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            recompute_ffn=recompute_ffn,
            attention=attention,
            fast=fast,
            compile=compile,
            init_cfg=init_cfg,
        )
        self.out_indices = out_indices
        # Layers after the last feature would get no gradients.
        del self.layers[out_indices[-1] + 1 :]
        self.pyramid = Pyramid(self.embed_dims, patch_size, strides, norm_cfg) if pyramid else None
        self.as_built = fingerprint(self)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Extract features.

        Args:
            images (Tensor): (B, C, H, W), at least one patch in size, of any aspect
                ratio.

        Returns:
            tuple[Tensor]: With a pyramid, maps of ``strides``; otherwise maps of stride
            ``patch_size``.
        """
        return super().forward(images)

    def run(self, images: Tensor, execution: Execution) -> tuple[Tensor, ...]:
        """Extract features by an execution."""
        kept: list[Tensor] = []
        for depth, (x, grid) in enumerate(self.trunk_outputs(images, execution)):
            if depth - 1 in self.out_indices:
                kept.append(execution.keep(len(kept), x, grid))
        return execution.finish(kept)

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Keep the tokens for a level, as a map (B, d, H, W)."""
        return x.unflatten(1, grid).permute(0, 3, 1, 2)

    def finish(self, kept: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the features, from the maps that were kept."""
        levels = self.pyramid(kept) if self.pyramid is not None else kept
        return tuple(level.contiguous() for level in levels)
