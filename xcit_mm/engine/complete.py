"""Refuses to test or infer with a checkpoint of another model.

mmengine only warns about names and shapes that do not match. What the file did not set keeps its
random values, and a random head gets a score like any other.
"""

from collections.abc import Iterator
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..errors import UserError
from ..weights.formats import group_names

# How many kinds of names an error lists.
SHOWN = 4
STATISTICS = ('running_mean', 'running_var')
# The last part of names that change what a layer computes; other leftovers are constants.
LEARNED = ('weight', 'bias', *STATISTICS)


class IncompleteWeightsError(UserError, RuntimeError):
    """A checkpoint that leaves parameters unset, or that has parts the model lacks."""


class LoadWatch:
    """Watches how weights are loaded into a model.

    Create it before they are loaded, and call :meth:`check` afterwards. A parameter or
    running statistic counts as set if loading wrote to it, so neither shared parameters nor renamed
    ones raise an alarm. If a model names its ``predictor``, all else may stay unset.

    Args:
        model (nn.Module): The model.
    """

    def __init__(self, model: nn.Module) -> None:
        inner: Any = model
        while is_model_wrapper(inner) or isinstance(inner, BaseTTAModel):
            inner = inner.module
        self.model: nn.Module = inner
        self.versions = {name: tensor._version for name, tensor in _learned(inner)}
        self.unexpected: list[str] = []
        # mmengine calls it as torch does, with the names that the model lacks.
        self.handle = inner.register_load_state_dict_post_hook(
            lambda _, keys: self.unexpected.extend(keys.unexpected_keys)
        )

    def check(self) -> None:
        """Raise if parameters were left unset, or if the model lacks parts of the file.

        Raises:
            IncompleteWeightsError: With a few of the names.
        """
        self.handle.remove()
        needed = getattr(self.model, 'predictor', '')
        learned = {name: t for name, t in _learned(self.model) if name.startswith(needed)}
        unset = [name for name, t in learned.items() if t._version == self.versions[name]]
        modules = {name for name, _ in self.model.named_modules()}
        unused = [name for name in self.unexpected if _is_learned(name, modules)]
        problems = []
        if unset:
            problems.append(
                f'it leaves {len(unset)} of the {len(learned)} parameters of the model at '
                f'random values ({group_names(unset, SHOWN)})'
            )
        if unused:
            problems.append(
                f'the model lacks {len(unused)} of its entries ({group_names(unused, SHOWN)})'
            )
        if problems:
            raise IncompleteWeightsError(
                f'The checkpoint does not belong to this config: {", and ".join(problems)}. Use '
                'the config it was trained with; --allow-partial uses the checkpoint anyway.'
            )


def _learned(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, and the running statistics of BatchNorm: inference needs both."""
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if name.endswith(STATISTICS):
            yield name, buffer


def _is_learned(name: str, modules: set[str]) -> bool:
    """Return whether an entry that the model lacks belongs to another head, not to a tool."""
    path, _, last = name.rpartition('.')
    # Without a path: averaged weights, the optimizer, the epoch. With one: constants of a layer.
    if not path or name.startswith('ema'):
        return False
    return path not in modules or last in LEARNED


@HOOKS.register_module()
class CompleteWeightsHook(Hook):
    """Stops a test if its checkpoint leaves parameters unset or belongs to another model."""

    watch: LoadWatch | None = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Watch; mmengine calls this before the weights go into the model."""
        self.watch = LoadWatch(runner.model)

    def before_test(self, runner: Runner) -> None:
        """Check."""
        if self.watch is not None:
            self.watch.check()
            self.watch = None
