"""Optimizers: mixed precision only with CUDA, and a learning rate per layer."""

from inspect import Parameter, signature
from typing import Any

import torch
from mmengine.optim import AmpOptimWrapper, DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, OPTIMIZERS
from torch import nn

from ..models.trunk import XCiTTrunk


@OPTIM_WRAPPERS.register_module(name='CudaAmpOptimWrapper')
def cuda_amp_optim_wrapper(
    loss_scale: str | float | dict = 'dynamic', dtype: str | None = None, **kwargs: Any
) -> OptimWrapper:
    """Build mmengine's ``AmpOptimWrapper`` with CUDA, its ``OptimWrapper`` without.

    Args:
        loss_scale (str, float or dict): As for ``AmpOptimWrapper``. Defaults to ``dynamic``.
        dtype (str, optional): As for ``AmpOptimWrapper``. Defaults to None.
        **kwargs: Arguments of ``OptimWrapper``.
    """
    if torch.cuda.is_available():
        return AmpOptimWrapper(loss_scale=loss_scale, dtype=dtype, **kwargs)
    return OptimWrapper(**kwargs)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class XCiTLayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Multiplies the learning rate of depth i by ``layer_decay_rate ** (deepest - i)``.

    The deeper a layer, the larger its steps, as in ELECTRA, BEiT and ViTDet.
    Depth 0 is the stem, depth i is layer i, and everything else (pyramid, neck, heads) is deepest
    and keeps the base rate. All options of mmengine's default constructor still work.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper.
        paramwise_cfg (dict): As for mmengine's constructor, and ``layer_decay_rate`` (float), in
            (0, 1].

    Examples:
        >>> optim_wrapper = dict(
        ...     optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        ...     constructor='XCiTLayerDecayOptimWrapperConstructor',
        ...     paramwise_cfg=dict(layer_decay_rate=0.75, norm_decay_mult=0.0))
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        paramwise_cfg = dict(paramwise_cfg or {})
        if 'layer_decay_rate' not in paramwise_cfg:
            raise ValueError('paramwise_cfg must have a layer_decay_rate')
        self.layer_decay_rate = paramwise_cfg.pop('layer_decay_rate')
        if not 0 < self.layer_decay_rate <= 1:
            raise ValueError(f'layer_decay_rate must be in (0, 1], not {self.layer_decay_rate}')
        # mmengine has no defaults where it multiplies these settings; the optimizer does.
        optimizer = optim_wrapper_cfg['optimizer']
        kind = optimizer['type']
        known = signature(OPTIMIZERS.get(kind) if isinstance(kind, str) else kind).parameters
        defaults = {name: known[name].default for name in ('lr', 'weight_decay') if name in known}
        defaults = {name: value for name, value in defaults.items() if value is not Parameter.empty}
        optim_wrapper_cfg = {**optim_wrapper_cfg, 'optimizer': {**defaults, **optimizer}}
        # mmengine reads these settings only if there are any.
        super().__init__(optim_wrapper_cfg, paramwise_cfg or {'bias_lr_mult': 1.0})

    def add_params(
        self,
        params: list[dict],
        module: nn.Module,
        prefix: str = '',
        is_dcn_module: int | float | None = None,
    ) -> None:
        """Add the parameters of a module; mmengine calls this with the whole model."""
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:
            return  # a part of the model: mmengine's own recursion
        scales = self._scales(module)
        for group in params:
            (parameter,) = group['params']
            lr: Any = group.get('lr', self.base_lr)
            group['lr'] = lr * scales[parameter]

    def _scales(self, model: nn.Module) -> dict[Any, float]:
        trunks = [(n, m) for n, m in model.named_modules() if isinstance(m, XCiTTrunk)]
        if len(trunks) != 1:
            raise ValueError(f'the model must have one XCiT, not {len(trunks)}')
        name, trunk = trunks[0]
        prefix = f'{name}.' if name else ''
        scales = {}
        for parameter_name, parameter in model.named_parameters():
            depth, num_depths = trunk.get_layer_depth(parameter_name, prefix)
            scales[parameter] = self.layer_decay_rate ** (num_depths - 1 - depth)
        return scales
