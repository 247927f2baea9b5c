"""Stops a run if its loss or gradients are not finite, before they reach the weights."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.hooks import Hook, RuntimeInfoHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.optim import Optimizer

from xcit_mm_runtime.files import write_atomically
from xcit_mm_runtime.text import join_some

from ..errors import UserError
from .checkpoint import describe_resume_point
from .foreach import copy_all, norms_of
from .images import describe_images, json_number
from .sharding import local_shard

ADVICE = (
    'If the run diverges, try a lower learning rate, a longer warm-up or clip_grad in '
    'optim_wrapper.'
)


class NonFiniteError(UserError, FloatingPointError):
    """A loss, gradient or weight that is infinite or not a number."""


class GradientWatch:
    """Records the norms of gradients as soon as backward has computed them all.

    Afterwards is too late: clipping spreads one infinite gradient to all parameters. The norms stay
    on their device, and nothing waits for them.

    Args:
        model (nn.Module): Provides the names of the parameters.
        optimizer (Optimizer): Provides the parameters to watch.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        names = {id(p): name.removeprefix('module.') for name, p in model.named_parameters()}
        self.groups = [
            {p: names.get(id(p), '?') for p in group['params'] if p.requires_grad}
            for group in optimizer.param_groups
        ]
        self.computed: list[Tensor] = []  # parameters with a gradient not yet in the norms
        self.norms: list[tuple[list[Tensor], Tensor]] = []
        self.handles = [
            parameter.register_post_accumulate_grad_hook(self._record)
            for group in self.groups
            for parameter in group
        ]

    def _record(self, parameter: Tensor) -> None:
        self.computed.append(parameter)
        if len(self.computed) == 1:
            call_after_backward(self._compute_norms)

    def _compute_norms(self) -> None:
        parameters = [p for p in self.computed if p.grad is not None]
        self.computed.clear()
        if parameters:
            gradients = [local_shard(cast(Tensor, p.grad).detach()) for p in parameters]
            self.norms.append((parameters, norms_of(gradients)))

    def clear(self) -> None:
        """Start over before an iteration."""
        self.computed.clear()
        self.norms.clear()

    def remove(self) -> None:
        """Stop watching."""
        for handle in self.handles:
            handle.remove()

    def has_fault(self) -> Tensor:
        """Return whether a gradient is not finite, on its device.

        After several backward passes without a step, this covers what they have accumulated.
        """
        self._compute_norms()  # of an optimizer that steps within backward
        if not self.norms:
            return torch.tensor(False)
        return torch.cat([norms for _, norms in self.norms]).isfinite().all().logical_not()

    def faulty_groups(self) -> list[dict]:
        """Return number, settings and parameters of each parameter group with a faulty gradient."""
        last: dict[Tensor, float] = {}
        for watched, norms in self.norms:
            last.update(zip(watched, norms.tolist(), strict=True))
        found = []
        for number, names in enumerate(self.groups):
            named = {name: json_number(last.get(p, 0.0)) for p, name in names.items()}
            faulty = {name: norm for name, norm in named.items() if isinstance(norm, str)}
            if faulty:
                settings = self.optimizer.param_groups[number]
                known: dict[str, Any] = {
                    key: settings[key] for key in ('lr', 'weight_decay') if key in settings
                }
                parameters = [dict(name=n, gradient_norm=norm) for n, norm in faulty.items()]
                found.append(dict(group=number, **known, parameters=parameters))
        return found


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Skips steps with a non-finite gradient, and stops the run after several in a row.

    A skipped iteration leaves no trace in the weights, the optimizer's state or the running
    statistics of BatchNorm. A report goes to ``non_finite/iter_N.json`` in the work folder: losses,
    images, and the faulty parameters with their groups. Weights that are not finite are never
    saved, so the last good checkpoint stays.

    With mixed precision, an overflow that a smaller loss scale can fix does not count. With several
    processes, all of them skip a step that one of them must skip.

    Args:
        max_in_a_row (int): The run stops after this many iterations in a row with a non-finite loss
            or gradient. Defaults to 3.
    """

    priority = 'ABOVE_NORMAL'

    def __init__(self, max_in_a_row: int = 3) -> None:
        if max_in_a_row < 1:
            raise ValueError(f'max_in_a_row must be at least 1, not {max_in_a_row}')
        self.max_in_a_row = max_in_a_row
        self.in_a_row = 0
        self.was_step = True
        self.batches: list[dict | None] = []  # since the last step: gradients may be accumulated

    def before_train(self, runner: Runner) -> None:
        """Watch the gradients and the optimizer, through torch's own hooks."""
        optimizer = runner.optim_wrapper.optimizer
        self.watch = GradientWatch(runner.model, optimizer)
        self.step_hook = optimizer.register_step_pre_hook(self._before_step)
        earlier = runner.hooks[: runner.hooks.index(self)]
        self.is_loss_logged = any(isinstance(hook, RuntimeInfoHook) for hook in earlier)
        self.buffers = list(runner.model.buffers())
        self.saved_buffers = [buffer.clone() for buffer in self.buffers]

    def after_train(self, runner: Runner) -> None:
        """Leave model and optimizer as they were."""
        self.watch.remove()
        self.step_hook.remove()

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None
    ) -> None:
        """Save the buffers that the iteration may spoil, and its images."""
        copy_all(self.buffers, self.saved_buffers)
        self.batches = [data_batch] if self.was_step else [*self.batches, data_batch]
        if self.was_step:
            self.watch.clear()  # else gradients are being accumulated
        self.has_checked = self.is_faulty = False
        self.groups: list[dict] = []
        self.loss_scale = loss_scale(runner)

    def _check_gradients(self) -> None:
        """Find faulty gradients in all processes, which must agree on whether to take the step."""
        # On a GPU, this is where the CPU waits, once per iteration.
        self.is_faulty, self.has_checked = in_any_process(self.watch.has_fault()), True
        if self.is_faulty:
            self.groups = self.watch.faulty_groups()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Cancel a faulty step by removing the gradients: without them, nothing changes."""
        self._check_gradients()
        if self.is_faulty:
            optimizer.zero_grad(set_to_none=True)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Count and report a faulty iteration; stop the run after too many in a row."""
        self.was_step = self.has_checked or runner.optim_wrapper.should_update()
        if self.was_step and not self.has_checked:
            self._check_gradients()  # the loss scaler skipped the step
        is_rescaled = self.is_faulty and 1 <= loss_scale(runner) < self.loss_scale
        outputs = outputs or {}
        is_finite = math.isfinite(self._loss(runner, outputs))
        # All processes count the same iterations, so that they stop together.
        if not in_any_process(not is_finite or (self.is_faulty and not is_rescaled)):
            if self.was_step:
                self.in_a_row = 0
            return
        copy_all(self.saved_buffers, self.buffers)
        self.in_a_row += 1
        path, text = self._report(runner, outputs)
        if self.in_a_row < self.max_in_a_row:
            runner.logger.warning(f'{text} This iteration was skipped. Details: {path}')
            return
        raise NonFiniteError(
            f'{text} The run was stopped: {self.in_a_row} in a row. Details are in {path.parent}. '
            f'{describe_resume_point(runner.work_dir)} First look at these images and their '
            f'annotations. {ADVICE}'
        )

    def _loss(self, runner: Runner, outputs: dict) -> float:
        """Return the loss. If mmengine has just read it from its device, that is not repeated."""
        if self.is_loss_logged and 'loss' in outputs:
            return runner.message_hub.get_scalar('train/loss').current()
        return float(torch.as_tensor(outputs.get('loss', 0.0)).detach())

    def _report(self, runner: Runner, outputs: dict) -> tuple[Path, str]:
        """Write what is known about the iteration; return the file, and its content in words."""
        report = dict(
            iteration=runner.iter + 1,
            epoch=runner.epoch + 1,
            rank=runner.rank,
            seed=runner.seed,
            losses={name: json_number(value) for name, value in outputs.items()},
            images=[image for batch in self.batches for image in describe_images(batch)],
            parameter_groups=self.groups,
        )
        rank = f'_rank_{runner.rank}' if runner.world_size > 1 else ''
        path = Path(runner.work_dir) / 'non_finite' / f'iter_{runner.iter + 1}{rank}.json'
        write_atomically(path, json.dumps(report, indent=1).encode())
        return path, describe_report(report)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Refuse to save weights that would spoil a resumed run."""
        not_finite = [
            name
            for name, value in checkpoint['state_dict'].items()
            if value.is_floating_point() and not torch.isfinite(value).all()
        ]
        if not_finite:
            raise NonFiniteError(
                f'After iteration {runner.iter + 1} these weights are not finite and were not '
                f'saved: {join_some(not_finite)}. {describe_resume_point(runner.work_dir)} {ADVICE}'
            )


def loss_scale(runner: Runner) -> float | Tensor:
    """Return the factor on the loss in mixed precision, on its device; 0 without one."""
    scaler = getattr(runner.optim_wrapper, 'loss_scaler', None)
    if scaler is None:
        return 0.0
    # Not get_scale, which waits for the device.
    return scaler.scale(torch.ones((), device=next(runner.model.parameters()).device))


def call_after_backward(function: Callable[[], None]) -> None:
    """Call a function when the running backward pass has ended; at once if torch has no way to."""
    try:
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(function)
    except (AttributeError, RuntimeError):  # not in this version, or not in backward
        function()


def in_any_process(condition: bool | Tensor) -> bool:
    """Return whether a condition holds in at least one process; all of them must ask."""
    if get_world_size() == 1:
        return bool(condition)
    flag = torch.as_tensor(condition).int()
    all_reduce(flag, 'max')
    return bool(flag)


def describe_report(report: dict) -> str:
    """Describe a report in one sentence."""
    losses = [name for name, value in report['losses'].items() if isinstance(value, str)]
    groups = report['parameter_groups']
    names = [parameter['name'] for group in groups for parameter in group['parameters']]
    images = sorted(report['images'], key=lambda image: image['finite'])
    text = f'Iteration {report["iteration"]} (process {report["rank"]}) is not finite:'
    if losses:
        text += f' losses {join_some(losses)};'
    if names:
        # Backward spreads a fault to earlier layers: the last one is nearest to its origin.
        numbers = join_some([group['group'] for group in groups[::-1]])
        text += f' gradients of {join_some(names[::-1])} in parameter groups {numbers};'
    if not losses and not names:
        text += ' the loss or gradients of another process;'
    shown = [f'{i["path"]}{"" if i["finite"] else " (pixels not finite)"}' for i in images]
    return f'{text} images {join_some(shown) or "unknown"}.'
