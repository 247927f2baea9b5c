"""Checkpoints that survive kills and full disks.

mmengine first deletes the oldest checkpoint, then writes the new one in place, then
``last_checkpoint``, where ``--resume`` finds its name. A run that ends in between leaves half a
file, or the name of a deleted file. Here, a file gets its name only when it is complete, and the
oldest checkpoint is deleted last.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner, find_latest_checkpoint

from xcit_mm_runtime.files import UNFINISHED, write_atomically


def describe_resume_point(work_dir: str) -> str:
    """Return a sentence that says where a resumed run would start."""
    path = find_latest_checkpoint(work_dir)
    if path is None:
        return 'No checkpoint has been saved yet.'
    return f'The last checkpoint, {path}, is complete: --resume continues from it.'


@register_backend('atomic')
class AtomicBackend(LocalBackend):
    """mmengine's local files, written atomically."""

    _postponed: dict[str | Path, int] | None = None

    def put(self, obj: bytes, filepath: str | Path) -> None:
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(filepath, obj)

    def remove(self, filepath: str | Path) -> None:
        if self._postponed is None:
            super().remove(filepath)
        else:
            self._postponed[filepath] = Path(filepath).stat().st_ino

    @contextmanager
    def removals_last(self) -> Iterator[None]:
        """Postpone removals to the end of the block; after an error, nothing is removed."""
        outdated: dict[str | Path, int] = {}
        self._postponed = outdated
        try:
            yield
        finally:
            self._postponed = None
        for path, inode in outdated.items():
            if Path(path).stat().st_ino == inode:  # else a new file has taken its name
                self.remove(path)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook``, but the last checkpoint survives kills and full disks.

    Args:
        **kwargs: As for ``CheckpointHook``. Files that are not on a local disk are written by
            the backend of their prefix.
    """

    def __init__(self, **kwargs: Any) -> None:
        is_local = '://' not in str(kwargs.get('out_dir') or '')
        if is_local and kwargs.get('file_client_args') is None:
            kwargs['backend_args'] = kwargs.get('backend_args') or dict(backend='atomic')
        super().__init__(**kwargs)

    def before_train(self, runner: Runner) -> None:
        """Delete files that an earlier run could not complete."""
        super().before_train(runner)
        if runner.rank == 0:
            for folder in {Path(self.out_dir), Path(runner.work_dir)}:
                for path in folder.glob('*' + UNFINISHED):
                    path.unlink()

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """Save, then point ``last_checkpoint`` at it, then delete the oldest."""
        outdated = self._record_step(runner, step)
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

    def _record_step(self, runner: Runner, step: int) -> list[int]:
        """Add a step to the list of kept checkpoints; return the steps that drop out of it."""
        if self.max_keep_ckpts <= 0 or step in self.keep_ckpt_ids:
            return []
        known = [*self.keep_ckpt_ids, step]
        self.keep_ckpt_ids.append(step)  # drops the first if there are too many
        # The checkpoint lists all of them: if this run is killed before it deletes the first one,
        # mmengine does so when the run resumes.
        runner.message_hub.update_info('keep_ckpt_ids', known)
        return known[: -self.max_keep_ckpts]

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        """Save as mmengine does, but delete the previous best after the new one is saved."""
        backend = self.file_backend
        with backend.removals_last() if isinstance(backend, AtomicBackend) else nullcontext():
            super()._save_best_checkpoint(runner, metrics)
