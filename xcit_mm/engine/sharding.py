"""Sharded training: each process keeps a part of the parameters, gradients and optimizer state.

torch's ``fully_shard`` (FSDP2) gathers the parameters of a layer just before it runs, and frees
them right after. mmengine's own wrapper is for FSDP1, and its runner would save a part of the
weights only. Here, state dicts are whole: a checkpoint is the same as that of a plain run, so any
number of processes can load and resume it, sharded or not.
"""

from collections.abc import Callable
from typing import Any

import torch
from mmengine.dist import broadcast
from mmengine.hooks import EMAHook
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import UserError
from ..models.trunk import XCiTTrunk
from ..weights.hook import register_load_hook

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError:  # before torch 2.6
    fully_shard = None  # type: ignore[assignment]

    class DTensor(Tensor):  # type: ignore[no-redef]
        """Nothing is one."""


@MODEL_WRAPPERS.register_module()
class FullySharded(nn.Module):
    """Shards a model over all processes: each layer of XCiT, and everything else together.

    The model is whole until :meth:`shard` is called, which :class:`.GuardedRunner` does before
    training. As with mmengine's wrapper for several processes, each process has its own buffers,
    and the checkpoint has those of the first one.

    Args:
        module (nn.Module): The model.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module: Any = module
        self.parts: list[Any] = []
        self.is_gathered = False

    def shard(self, runner: Runner) -> None:
        """Initialize the weights, the same in all processes, and shard them.

        Args:
            runner (Runner): The runner that trains the model.
        """
        check_supported(self.module, runner)
        self.module.init_weights()
        for tensor in self.module.state_dict().values():
            broadcast(tensor)
        trunks = [part for part in self.module.modules() if isinstance(part, XCiTTrunk)]
        layers = [layer for trunk in trunks for layer in trunk.layers]
        self.parts = [fully_shard(part) for part in (*layers, self.module)]
        self.module.register_state_dict_post_hook(
            lambda _, state, prefix, __: state.update(_converted(state, gather))
        )
        for part in self.module.modules():
            register_load_hook(part, _shard_loaded)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As in the model."""
        return self.module(*args, **kwargs)

    def train_step(self, data: Any, optim_wrapper: Any) -> dict[str, Tensor]:
        """As in the model."""
        if not self.parts:
            raise RuntimeError(
                "FullySharded needs the runner of this package: runner_type = 'GuardedRunner'"
            )
        self._gather(False)
        return self.module.train_step(data, optim_wrapper)

    def val_step(self, data: Any) -> list:
        """As in the model; all parameters stay gathered until training continues.

        Layers may run more often in one process than in another: in sliding windows, for one.
        """
        self._gather(True)
        return self.module.val_step(data)

    def test_step(self, data: Any) -> list:
        """As in the model."""
        self._gather(True)
        return self.module.test_step(data)

    def _gather(self, is_gathered: bool) -> None:
        if is_gathered == self.is_gathered:
            return
        self.is_gathered = is_gathered
        for part in self.parts:
            part.set_reshard_after_forward(not is_gathered, recurse=False)
            if is_gathered:
                part.unshard()
            else:
                part.reshard()


def check_supported(model: nn.Module, runner: Runner) -> None:
    """Raise a :class:`UserError` if something in a run does not work with shards.

    Args:
        model (nn.Module): The model.
        runner (Runner): The runner.
    """
    if fully_shard is None:
        raise UserError(
            f'FullySharded needs torch 2.6 or newer; this is torch {torch.__version__}. Without '
            'model_wrapper_cfg, each process keeps the whole model.'
        )
    scalars = [name for name, value in model.named_parameters() if value.ndim == 0]
    # By name: xcit_mm.large is imported only by those who use it.
    spread = any(type(part).__name__ == 'SpreadXCiT' for part in model.modules())
    found = [f'parameters without dimensions ({scalars[0]})'] if scalars else []
    found += ['SpreadXCiT'] if spread else []
    found += ['EMAHook'] if any(isinstance(hook, EMAHook) for hook in runner.hooks) else []
    found += ['find_unused_parameters'] if runner.cfg.get('find_unused_parameters') else []
    if found:
        raise UserError(
            f'FullySharded does not work with {" and ".join(found)}: leave it out, or train '
            'without model_wrapper_cfg.'
        )


def shard_optimizer(optimizer: Optimizer) -> None:
    """Let the state dicts of an optimizer of a sharded model be whole.

    Args:
        optimizer (Optimizer): The optimizer.
    """
    optimizer.register_state_dict_post_hook(
        lambda _, state: {**state, 'state': _converted(state['state'], gather)}
    )
    optimizer.register_load_state_dict_pre_hook(_shard_loaded_optimizer)


def gather(value: Any) -> Any:
    """Gather a whole tensor on the CPU from the shards of all processes, which must all ask."""
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def local_shard(value: Tensor) -> Tensor:
    """Return the part of a tensor that this process has."""
    return value.to_local() if isinstance(value, DTensor) else value


def _converted(values: dict, convert: Callable[[Any], Any]) -> dict:
    return {
        key: _converted(value, convert) if isinstance(value, dict) else convert(value)
        for key, value in values.items()
    }


def _shard_like(value: Any, parameter: Tensor) -> Any:
    """Return the shard of a whole tensor, if this parameter is sharded."""
    if not isinstance(parameter, DTensor) or getattr(value, 'shape', None) != parameter.shape:
        return value
    value = value.to(parameter.device)
    # None: every process has read the same file.
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _shard_loaded(module: nn.Module, state: dict, prefix: str, *_: Any) -> None:
    for name, parameter in module.named_parameters(prefix.rstrip('.'), recurse=False):
        if name in state:
            state[name] = _shard_like(state[name], parameter)


def _shard_loaded_optimizer(optimizer: Optimizer, state: dict) -> dict:
    parameters = [p for group in optimizer.param_groups for p in group['params']]
    sharded = {
        index: {key: _shard_like(value, parameters[index]) for key, value in values.items()}
        for index, values in state['state'].items()
    }
    return {**state, 'state': sharded}
