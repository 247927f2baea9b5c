"""Stops a run whose loss or gradient is no number any more, before its weights are none either."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from ..files import write_atomically
from .checkpoint import what_resume_takes
from .fault_report import describe_images, faulty_groups, in_words, json_number, some


class NonFiniteError(FloatingPointError):
    """A loss, gradient or weight that is infinite or not a number."""


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Leaves out steps with a non-finite gradient, and stops the run after several in a row.

    Such an iteration leaves no trace in the weights, in the optimizer's state and in the running
    statistics of BatchNorm. What is known of it goes into ``non_finite/iter_N.json`` in the work
    folder: losses, images, and the parameters at fault with their groups. Weights that are not
    finite are never saved, so the last good checkpoint stays.

    With mixed precision, an overflow that a smaller loss scale can mend does not count.

    Args:
        max_in_a_row (int): So many iterations in a row with a non-finite loss or gradient stop the
            run. Defaults to 3.
    """

    priority = 'ABOVE_NORMAL'

    def __init__(self, max_in_a_row: int = 3) -> None:
        if max_in_a_row < 1:
            raise ValueError(f'max_in_a_row must be at least 1, not {max_in_a_row}')
        self.max_in_a_row = max_in_a_row
        self.in_a_row = 0
        self.stepped = True
        self.is_mended = False
        self.batches: list[dict | None] = []  # since the last step: gradients may be accumulated
        self.groups: list[dict] = []

    def before_train(self, runner: Runner) -> None:
        """Look at gradients between backward and step.

        mmengine has no hook there, and later a clipped gradient does not tell which parameter is
        at fault: all are.
        """
        runner.optim_wrapper.step = partial(self._step, runner.optim_wrapper, runner.model)
        self.buffers = list(runner.model.buffers())
        self.saved_buffers = [buffer.clone() for buffer in self.buffers]

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None
    ) -> None:
        """Keep what the iteration may spoil, and its images."""
        copy_all(self.buffers, self.saved_buffers)
        self.batches = [data_batch] if self.stepped else [*self.batches, data_batch]
        self.groups, self.stepped, self.is_mended = [], False, False

    def _step(self, wrapper: OptimWrapper, model: nn.Module, **kwargs: Any) -> None:
        self.stepped = True
        self.groups = faulty_groups(wrapper, model)
        step = partial(type(wrapper).step, wrapper, **kwargs)
        scaler = getattr(wrapper, 'loss_scaler', None)
        if not self.groups:
            step()
        elif scaler is not None:
            scale = scaler.get_scale()
            step()  # leaves the weights alone and lowers the scale
            self.is_mended = 1 <= scaler.get_scale() < scale

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Count, save and perhaps stop."""
        outputs = outputs or {}
        is_finite = not isinstance(json_number(outputs.get('loss', 0.0)), str)
        if is_finite and (not self.groups or self.is_mended):
            if self.stepped:
                self.in_a_row = 0
            return
        copy_all(self.saved_buffers, self.buffers)
        self.in_a_row += 1
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
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(report, indent=1).encode())
        text = in_words(report)
        if self.in_a_row < self.max_in_a_row:
            runner.logger.warning(f'{text} This iteration was left out. Details: {path}')
            return
        raise NonFiniteError(
            f'{text} The run was stopped: {self.in_a_row} in a row. Details of each are in '
            f'{path.parent}. {what_resume_takes(runner.work_dir)} Look at these images and '
            'their annotations first; a lower learning rate, a longer warm-up or clip_grad in '
            'optim_wrapper help a run that diverges.'
        )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Refuse to save what would spoil a resumed run."""
        spoilt = [
            name
            for name, value in checkpoint['state_dict'].items()
            if value.is_floating_point() and not torch.isfinite(value).all()
        ]
        if spoilt:
            raise NonFiniteError(
                f'After iteration {runner.iter + 1} these weights are not finite and were not '
                f'saved: {some(spoilt)}. {what_resume_takes(runner.work_dir)} A lower learning '
                'rate, a longer warm-up or clip_grad in optim_wrapper may help.'
            )


def copy_all(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
    """Copy each of many small tensors, at one go where the device can."""
    if sources:
        torch._foreach_copy_(targets, sources)
