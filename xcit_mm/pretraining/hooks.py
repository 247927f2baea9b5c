"""Hooks of pre-training."""

import math
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.optim import Optimizer

from xcit_mm_runtime.text import join_some

from ..datasets.problems import DataError
from ..engine.foreach import norms_of, scale_all
from ..weights.convert import DESCRIPTION
from ..weights.formats import recognize, structure


def inner_model(runner: Runner) -> Any:
    """Return the model of a runner, without the wrapper of several processes."""
    return runner.model.module if is_model_wrapper(runner.model) else runner.model


@HOOKS.register_module()
class ClassesHook(Hook):
    """Stops a run whose validation images have other classes than its training images."""

    def before_train(self, runner: Runner) -> None:
        """Compare the classes."""
        if runner.val_loop is None:
            return
        datasets = [loop.dataloader.dataset for loop in (runner.train_loop, runner.val_loop)]
        trained, tested = (getattr(data, 'metainfo', {}).get('classes') for data in datasets)
        if trained and tested and trained != tested:
            names = join_some(sorted(set(trained) ^ set(tested)))
            raise DataError(
                'The validation images have other classes than the training images; they differ '
                f'in {names or "their order"}.'
            )


@HOOKS.register_module()
class DescribeHook(Hook):
    """Says in each checkpoint what it is: the kind of training, and the sizes of the network."""

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add ``xcit_mm`` to the ``meta`` of a checkpoint."""
        recognized = recognize(checkpoint['state_dict'])
        sizes = structure(recognized.state) if recognized is not None else {}
        model = type(inner_model(runner)).__name__
        checkpoint['meta'][DESCRIPTION] = dict(trained_as=model, **sizes)


@HOOKS.register_module()
class ValidateFirstHook(Hook):
    """Validates the network before it is trained, to compare later results with.

    It comes after the checkpoint hook, which takes part in validation.
    """

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        """Validate, unless a run is resumed or never validates."""
        if runner.iter == 0 and runner.val_loop is not None:
            runner.val_loop.run()


def cosine(start: float, end: float, step: int, steps: int) -> float:
    """Go from ``start`` to ``end`` along half a cosine."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * step / steps))


def ramp(start: float, end: float, step: int, steps: int) -> float:
    """Go from ``start`` to ``end`` in equal steps, and stay there."""
    return end if step >= steps - 1 else start + (end - start) * step / (steps - 1)


def clip_each_gradient(optimizer: Optimizer, max_norm: float) -> None:
    """Scale down each gradient whose own norm is larger than ``max_norm``.

    In mixed precision, a fused optimizer has gradients that it unscales in its step, by the
    ``grad_scale`` that GradScaler sets before. Other optimizers get unscaled gradients.
    """
    parameters = [p for group in optimizer.param_groups for p in group['params']]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    norms = norms_of(gradients)
    scale = getattr(optimizer, 'grad_scale', None)
    norms = norms if scale is None else norms / scale
    scale_all(gradients, (max_norm / (norms + 1e-6)).clamp(max=1))


@HOOKS.register_module()
class DINOHook(Hook):
    """The schedules of DINO, and what it does before and after each step of the optimizer.

    All of it follows from the iteration, so a resumed run continues exactly.

    Args:
        momentum (float): Momentum of the teacher at the start; it rises to 1 along a cosine.
            Defaults to 0.996.
        teacher_temp (tuple[float, float]): Temperature of the teacher in the first epoch and after
            the warm-up. Defaults to (0.04, 0.07).
        temp_warmup_epochs (int): Epochs of that warm-up. Defaults to 30.
        final_weight_decay (float, optional): Weight decay at the end, reached along a cosine, of
            the parameters that have any. Defaults to 0.4. None keeps the optimizer's.
        freeze_last_layer (int): Epochs in which the last layer of the head stays as it is.
            Defaults to 1.
        clip_grad (float, optional): Largest norm of the gradient of each parameter, not of all
            together. Defaults to 3.
    """

    def __init__(
        self,
        momentum: float = 0.996,
        teacher_temp: tuple[float, float] = (0.04, 0.07),
        temp_warmup_epochs: int = 30,
        final_weight_decay: float | None = 0.4,
        freeze_last_layer: int = 1,
        clip_grad: float | None = 3.0,
    ) -> None:
        self.momentum = momentum
        self.teacher_temp = teacher_temp
        self.temp_warmup_epochs = temp_warmup_epochs
        self.final_weight_decay = final_weight_decay
        self.freeze_last_layer = freeze_last_layer
        self.clip_grad = clip_grad

    def before_train(self, runner: Runner) -> None:
        """Take note of the parameters, and prepare the gradients through torch's own hook."""
        self.model = inner_model(runner)
        self.runner = runner
        optimizer = runner.optim_wrapper.optimizer
        self.weight_decay = optimizer.defaults['weight_decay']
        self.decayed = [group for group in optimizer.param_groups if group['weight_decay']]
        self.step_hook = optimizer.register_step_pre_hook(self._before_step)

    def after_train(self, runner: Runner) -> None:
        """Leave the optimizer as it was."""
        self.step_hook.remove()

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None
    ) -> None:
        """Set the teacher's temperature and the weight decay."""
        self.model.teacher_temp = ramp(*self.teacher_temp, runner.epoch, self.temp_warmup_epochs)
        if self.final_weight_decay is None:
            return
        decay = cosine(self.weight_decay, self.final_weight_decay, runner.iter, runner.max_iters)
        for group in self.decayed:
            group['weight_decay'] = decay

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Clip each gradient, and drop those of a frozen last layer."""
        if self.clip_grad:
            clip_each_gradient(optimizer, self.clip_grad)
        if self.runner.epoch < self.freeze_last_layer:
            for parameter in self.model.student.head.last_layer.parameters():
                parameter.grad = None

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Move the teacher."""
        self.model.update_teacher(cosine(self.momentum, 1.0, runner.iter, runner.max_iters))
