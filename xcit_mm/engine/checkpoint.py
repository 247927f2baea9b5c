"""Checkpoints that are whole or not there, whenever a run is killed or its disk fills up.

mmengine removes the checkpoint that is one too many, then writes the new one in place, then
``last_checkpoint``, the file by which ``--resume`` finds it, in place too. A run that ends in
between leaves half a file, or the name of a file that is gone. Here each file appears under its
name at once, and what is one too many goes last.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner, find_latest_checkpoint

from ..files import UNFINISHED, write_atomically


def what_resume_takes(work_dir: str) -> str:
    """A sentence that says which checkpoint a resumed run would go on from."""
    path = find_latest_checkpoint(work_dir)
    if path is None:
        return 'No checkpoint was saved before.'
    return f'The last checkpoint, {path}, is whole, and --resume goes on from it.'


@register_backend('atomic')
class AtomicBackend(LocalBackend):
    """mmengine's local files, written atomically."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(filepath, obj)

    def put_text(self, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:
        self.put(obj.encode(encoding), filepath)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook``, of which a kill or a full disk leaves the last checkpoint.

    Args:
        **kwargs: As for ``CheckpointHook``. Files that are not on a local disk are written by the
            backend of their prefix.
    """

    def __init__(self, **kwargs: Any) -> None:
        is_local = '://' not in str(kwargs.get('out_dir') or '')
        if is_local and kwargs.get('file_client_args') is None:
            kwargs['backend_args'] = kwargs.get('backend_args') or dict(backend='atomic')
        super().__init__(**kwargs)

    def before_train(self, runner: Runner) -> None:
        """Remove what an earlier run could not finish."""
        super().before_train(runner)
        if runner.rank == 0:
            for folder in {Path(self.out_dir), Path(runner.work_dir)}:
                for path in folder.glob('*' + UNFINISHED):
                    path.unlink()

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """Save; then point ``last_checkpoint`` at it; then remove the one that is too many."""
        outdated = self._take_note(runner, step)
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if runner.rank == 0:
            write_atomically(Path(runner.work_dir) / 'last_checkpoint', self.last_ckpt.encode())
            for old_step in outdated:
                path = self.file_backend.join_path(
                    self.out_dir, self.filename_tmpl.format(old_step)
                )
                if self.file_backend.isfile(path):
                    self.file_backend.remove(path)

    def _take_note(self, runner: Runner, step: int) -> list[int]:
        """Enter a step in the list of kept checkpoints; returns the steps that fall out of it."""
        if self.max_keep_ckpts <= 0 or step in self.keep_ckpt_ids:
            return []
        known = [*self.keep_ckpt_ids, step]
        self.keep_ckpt_ids.append(step)  # drops the first if there are too many
        # All of them go into the checkpoint: if this run is killed before it removes the first,
        # mmengine does so when the run is resumed.
        runner.message_hub.update_info('keep_ckpt_ids', known)
        return known[: -self.max_keep_ckpts]

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        """As mmengine's, but the former best goes when the new one is there."""
        with _removals_last(self.file_backend):
            super()._save_best_checkpoint(runner, metrics)


@contextmanager
def _removals_last(backend: LocalBackend) -> Iterator[None]:
    """What is removed inside is removed at the end, and not at all if there was an error."""
    outdated: list[str] = []
    backend.remove = outdated.append
    try:
        yield
    finally:
        del backend.remove
    for path in outdated:
        backend.remove(path)
