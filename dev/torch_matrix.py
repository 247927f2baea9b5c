"""Old and new PyTorch: sets up throw-away environments, and runs a short suite in each.

``python -m dev.torch_matrix`` clones the last commit once per version of torch, runs ``make setup
TORCH=... OPS=torchvision`` there, then the parts below, and prints the table of docs/install.md. An
environment takes 5 GB or more and some minutes. It is removed at the end, unless with ``--keep``.
"""

import argparse
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
# The oldest that setup.py allows, the pinned one, and the newest ones.
VERSIONS = ('2.6.0', '2.13.0', '2.14.1', '2.15.0')
SHAPES = {
    'detection': ('detection/mask_rcnn_xcit_n12_8_shapes.py', 'bbox segm'),
    'segmentation': ('segmentation/sem_fpn_xcit_n12_8_shapes.py', 'mIoU'),
}
SHORT = (
    'train_cfg.max_iters=4 train_cfg.val_interval=100 default_hooks.checkpoint.interval=4 '
    'shapes.train=8 shapes.val=2'
)


def parts() -> dict[str, list[str]]:
    """What is run in each environment, by the title of its column."""
    run = {
        'operators': ['python -m pytest -q tests/compat/test_mmcv_ops.py'],
        'parity': ['python -m pytest -q tests/models/test_golden.py',
                   'python -m pytest -q tests/models/test_timm_parity.py -k n12'],
    }  # fmt: skip
    for task, (config, metrics) in SHAPES.items():
        options = f'--work-dir work_dirs/{task} --cfg-options {SHORT}'
        run[f'{task}: train, test'] = [
            f'python tools/train.py configs/{config} {options}',
            f'python tools/test.py configs/{config} work_dirs/{task}/iter_4.pth '
            f'--eval {metrics} {options}',
        ]
    return run


def examine(torch: str, folder: Path) -> dict[str, str]:
    """Set up one environment and run all parts; a row of the table."""
    clone, log = folder / torch, folder / f'{torch}.log'
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(['git', 'clone', '--quiet', str(ROOT), str(clone)], check=True)
    row = {'torch': torch, **dict.fromkeys(('torchvision', 'set-up', *parts()), '-')}
    row['set-up'] = _run([f'make setup TORCH={torch} OPS=torchvision'], clone, log)
    print(f'{torch}: set-up: {row["set-up"]}', flush=True)
    if row['set-up'].startswith('failed'):
        return row
    code = 'from importlib.metadata import version as v; print(v("torchvision"))'
    command = [str(clone / '.venv/bin/python'), '-c', code]
    row['torchvision'] = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    for title, commands in parts().items():
        row[title] = _run(commands, clone, log)
        print(f'{torch}: {title}: {row[title]}', flush=True)
    return row


def _run(commands: list[str], clone: Path, log: Path) -> str:
    """Run commands one after the other; returns what the table says about them."""
    start, passed = time.monotonic(), 0
    for command in commands:
        words = command.replace('python ', f'{clone}/.venv/bin/python ', 1).split()
        with log.open('a', encoding='utf-8') as file:
            file.write(f'\n$ {command}\n')
            file.flush()
            begin = file.tell()
            status = subprocess.run(words, cwd=clone, stdout=file, stderr=subprocess.STDOUT)
        if status.returncode:
            return f'failed: {" ".join(words[1:3])}'
        output = log.read_bytes()[begin:].decode(errors='replace')
        passed += sum(int(count) for count in re.findall(r'^(\d+) passed', output, re.M))
    tests = f'{passed} tests, ' if passed else ''
    return f'{tests}{time.monotonic() - start:.0f} s'


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('versions', nargs='*', default=VERSIONS, help='default: %(default)s')
    parser.add_argument('--folder', type=Path, help='where (default: a temporary folder)')
    parser.add_argument('--keep', action='store_true', help='do not remove the environments')
    args = parser.parse_args(argv)
    folder = args.folder or Path(tempfile.mkdtemp(prefix='torch_matrix_'))
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for torch in args.versions:
        rows.append(examine(torch, folder))
        if not args.keep:
            shutil.rmtree(folder / torch)
    print(f'Logs: {folder}\n\n{format_table(rows, "markdown")}')
    return int(any('failed' in cell for row in rows for cell in row.values()))


if __name__ == '__main__':
    sys.exit(main())
