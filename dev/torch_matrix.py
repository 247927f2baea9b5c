"""The README's pip line on several versions of Python and PyTorch, in empty environments.

``python -m dev.torch_matrix`` builds the wheel of the last commit. For each row it makes an
environment, installs the wheel as the README says, and runs the doctor, a short suite, and training
and testing in an empty folder. It prints the table of docs/install.md with the commit and the date.
An environment takes 6 GB and some minutes. It is removed at the end, unless with ``--keep``.
"""

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from xcit_mm.tables import format_table

ROOT = Path(__file__).parents[1]
# Python and torch, which is the newest of the index where it is not named. The oldest that setup.py
# allows, the pinned one, and what a new user gets.
ROWS = ('3.10', '3.12:2.6.0', '3.12:2.13.0', '3.12', '3.13')
SHAPES = {
    'detection': ('detection/mask_rcnn_xcit_n12_8_shapes.py', 'bbox segm'),
    'segmentation': ('segmentation/sem_fpn_xcit_n12_8_shapes.py', 'mIoU'),
}
ITERATIONS = 40
SHORT = (
    f'train_cfg.max_iters={ITERATIONS} train_cfg.val_interval={ITERATIONS} '
    f'default_hooks.checkpoint.interval={ITERATIONS} shapes.train=32 shapes.val=4'
)
SUITE = 'tests/compat/test_mmcv_ops.py tests/models/test_golden.py tests/models/test_timm_parity.py'


def parts() -> dict[str, list[str]]:
    """What is run in each environment, by the title of its column."""
    run = {
        'doctor': ['xcit-mm doctor'],
        'operators, parity': [f'python -m pytest -q -k "not test_timm or n12" {SUITE}'],
    }
    for task, (config, metrics) in SHAPES.items():
        options = f'--work-dir work_dirs/{task} --cfg-options {SHORT}'
        run[f'{task}: train, test'] = [
            f'xcit-mm train xcit_mm::{config} {options}',
            f'xcit-mm test xcit_mm::{config} work_dirs/{task}/iter_{ITERATIONS}.pth '
            f'--eval {metrics} {options}',
        ]
    return run


class Environment:
    """An environment and the folder in which commands are tried; both are new.

    Args:
        row (str): ``PYTHON`` or ``PYTHON:TORCH``, such as ``3.12`` or ``3.11:2.6.0``.
        folder (Path): Where it is made, and where its log goes.
        clone (Path): A clone of the commit, with its tests.
    """

    def __init__(self, row: str, folder: Path, clone: Path) -> None:
        self.python, _, self.torch = row.partition(':')
        self.folder = folder / row.replace(':', '_')
        self.venv, self.empty = self.folder / 'venv', self.folder / 'empty'
        self.log, self.clone = folder / f'{self.folder.name}.log', clone
        self.remove()
        self.empty.mkdir(parents=True)

    def remove(self) -> None:
        """Delete all but the log."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def examine(self) -> dict[str, str]:
        """Set it up and run all parts; a row of the table."""
        (wheel,) = self.clone.glob('dist/*.whl')
        # With its torchvision: pip would replace torch by the one that the newest belongs to.
        chosen = [f'pip install -q torch=={self.torch} torchvision'] if self.torch else []
        install = [
            f'python{self.python} -m venv {self.venv}',
            *chosen,
            f'pip install -q {wheel}[det,seg,lite]',
        ]
        row = {'Python': self.python, 'torch': self.torch or '-', 'torchvision': '-'}
        row |= {'pip line': self.run(install), **dict.fromkeys(parts(), '-')}
        if not row['pip line'].startswith('failed'):
            row['torch'], row['torchvision'] = self.version('torch'), self.version('torchvision')
            self.run(['pip install -q pytest hypothesis timm'])  # for the suite alone
            row |= {title: self.run(commands) for title, commands in parts().items()}
        return row

    def version(self, package: str) -> str:
        code = f'from importlib.metadata import version; print(version("{package}"))'
        command = [str(self.venv / 'bin/python'), '-c', code]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    def run(self, commands: list[str]) -> str:
        """Run commands one after the other; returns what the table says about them."""
        start, passed = time.monotonic(), 0
        for command in commands:
            cwd = self.clone if 'pytest ' in command else self.empty
            path = f'export PATH={self.venv}/bin:$PATH; '
            with self.log.open('a', encoding='utf-8') as file:
                file.write(f'\n$ {command}\n')
                file.flush()
                begin = file.tell()
                status = subprocess.run(
                    path + command, shell=True, cwd=cwd, stdout=file, stderr=subprocess.STDOUT
                )
            if status.returncode:
                return f'failed: {" ".join(command.split()[:3])}'
            output = self.log.read_bytes()[begin:].decode(errors='replace')
            passed += sum(int(count) for count in re.findall(r'^(\d+) passed', output, re.M))
        seconds = f'{time.monotonic() - start:.0f} s'
        print(f'{self.folder.name}: {commands[-1][:60]}: {seconds}', flush=True)
        return f'{passed} tests' if passed else 'ok'


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument(
        'rows', nargs='*', default=ROWS, help='PYTHON or PYTHON:TORCH (default: %(default)s)'
    )
    parser.add_argument('--folder', type=Path, help='where (default: a temporary folder)')
    parser.add_argument('--keep', action='store_true', help='do not remove the environments')
    args = parser.parse_args(argv)
    folder = args.folder or Path(tempfile.mkdtemp(prefix='torch_matrix_'))
    clone = folder / 'clone'
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(['git', 'clone', '--quiet', str(ROOT), str(clone)], check=True)
    subprocess.run(['make', 'wheel'], cwd=clone, check=True)
    describe = ['git', 'rev-parse', '--short', 'HEAD']
    commit = subprocess.run(describe, cwd=clone, capture_output=True, text=True).stdout.strip()
    rows = []
    for row in args.rows:
        environment = Environment(row, folder, clone)
        rows.append(environment.examine())
        if not args.keep:
            environment.remove()
    print(f'Logs: {folder}\n\nCommit {commit}, {datetime.date.today()}:\n')
    print(format_table(rows, 'markdown'))
    return int(any('failed' in cell for row in rows for cell in row.values()))


if __name__ == '__main__':
    sys.exit(main())
