"""Train with a checkpoint per epoch, in children that are killed at each file operation.

A child kills itself just before its n-th call of a function that changes files, for n = 0, 1, 2...
until one reaches the end. After each kill, this checks what a resumed run would find.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from mmengine.evaluator import BaseMetric
from mmengine.runner import find_latest_checkpoint

from tests.engine.small_runs import batches, build
from xcit_mm.weights import read_checkpoint

CALLS = ('open', 'write', 'flush', 'fsync', 'replace', 'rename', 'unlink', 'remove')
FILES = ('checkpoint', 'xcit_mm_runtime/files', 'local_backend', 'pathlib')


class Score(BaseMetric):
    """Rises with each validation."""

    count = 0

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        self.count += 1
        return dict(acc=self.count)


def kill_at(number):
    """Kill this process just before its n-th file operation."""
    count = 0

    def profile(frame, event, function):
        nonlocal count
        is_change = event == 'c_call' and function.__name__ in CALLS
        if is_change and any(name in frame.f_code.co_filename for name in FILES):
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.setprofile(profile)


def find_fault(work_dir, best_before):
    """Return what is wrong with the checkpoints, if anything."""
    last = find_latest_checkpoint(str(work_dir))
    try:
        for path in [*work_dir.glob('*.pth'), *([last] if last is not None else [])]:
            read_checkpoint(path)
    except Exception as error:
        return type(error).__name__
    return 'no best' if best_before and not any(work_dir.glob('best_*.pth')) else ''


def main(hook, work_dir):
    torch.set_num_threads(1)
    checkpoint = dict(type=hook, max_keep_ckpts=1, save_best='acc', rule='greater')
    runner = build(work_dir, batches('good'), checkpoint=checkpoint, epochs=2, metric=Score())
    number, faults, best_before, status = 0, 0, False, None
    while status is None or os.WIFSIGNALED(status):
        for path in [*work_dir.glob('*.pth*'), work_dir / 'last_checkpoint']:
            path.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            kill_at(number)
            runner.train()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        fault = find_fault(work_dir, best_before)
        faults += bool(fault)
        best_before = best_before or any(work_dir.glob('best_*.pth'))
        print('operation', number, fault or 'good', flush=True)
        number += 1
    print('kills', number - 1, 'faults', faults, 'status', status)
    print('left', *sorted(path.name for path in work_dir.glob('*.pth*')))


if __name__ == '__main__':
    main(sys.argv[1], Path(sys.argv[2]))
