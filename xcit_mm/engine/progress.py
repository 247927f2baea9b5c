"""A progress bar for training: it draws on a terminal and stays quiet in a log."""

from typing import TYPE_CHECKING

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from xcit_mm_runtime.progress import progress_bar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@HOOKS.register_module()
class ProgressBarHook(Hook):
    """Shows epoch, iteration, loss, learning rate, time left and the last metric.

    mmengine's own log lines scroll above the bar.

    Args:
        key_metric (str, optional): The metric to show, or a part of its name. Defaults to None:
            ``mAP`` or ``mIoU``, whichever validation reports first.
    """

    priority = 'VERY_LOW'

    def __init__(self, key_metric: str | None = None) -> None:
        self.key_metrics = (key_metric,) if key_metric else ('mAP', 'mIoU')
        self.progress: Progress | None = None
        self.task: TaskID
        self.metric = ''

    def before_train(self, runner: Runner) -> None:
        """Start the bar, only in the main process and on a terminal."""
        from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

        columns = ('{task.description}', BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
        progress = progress_bar(*columns, transient=False)
        if runner.rank == 0 and not progress.disable:
            self.task = progress.add_task('training', total=runner.max_iters, completed=runner.iter)
            self.progress = progress
            progress.start()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Advance by one iteration."""
        if self.progress is None:
            return
        loss = float((outputs or {}).get('loss', float('nan')))
        rate = runner.optim_wrapper.get_lr()
        lr = next(iter(rate.values()))[0]
        epochs = f'epoch {runner.epoch + 1}/{runner.max_epochs} ' if runner.max_epochs > 1 else ''
        text = f'{epochs}loss {loss:.3f} lr {lr:.1e}{self.metric}'
        self.progress.update(self.task, description=text, completed=runner.iter + 1)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Remember the last metric."""
        for key in self.key_metrics:
            for name, value in (metrics or {}).items():
                if key in name:
                    self.metric = f' {name.split("/")[-1]} {value:.3g}'
                    return

    def after_train(self, runner: Runner) -> None:
        """Leave the finished bar on the screen."""
        self.stop()

    def stop(self) -> None:
        """Release the terminal."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None
