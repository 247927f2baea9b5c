"""Trains Mask R-CNN on drawn images with an eager, a plain and a compiled backbone.

Prints for how many iterations the losses are the same, and what an iteration takes. Training
magnifies rounding: once a proposal is chosen differently, the losses part. So the plain network,
which computes the same in another order, is the yardstick for the compiled one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG = 'xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py'
BACKBONES = {'eager': 'compile=False', 'plain': 'fast=False', 'compiled': 'compile=True'}
TOLERANCE = 1e-3


def train(folder: Path, iterations: int, setting: str) -> list[dict[str, Any]]:
    """Return what a training logged, one entry per iteration."""
    settings = [
        f'model.backbone.{setting}',
        f'train_cfg.max_iters={iterations}',
        'default_hooks.logger.interval=1',
        'log_processor.window_size=1',
        'randomness.seed=0',
    ]
    # In a process of its own: mmengine's visualizer keeps the folder of the first run in a process.
    command = [sys.executable, '-m', 'xcit_mm_cli', 'train', CONFIG, '--no-validate']
    subprocess.run([*command, '--work-dir', folder, '--cfg-options', *settings], check=True)
    (log,) = folder.glob('*/vis_data/scalars.json')
    return [json.loads(line) for line in log.read_text().splitlines() if '"loss"' in line]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='python -m dev.compiled_training', description=__doc__)
    parser.add_argument('--iterations', type=int, default=40, help='per training (default: 40)')
    args = parser.parse_args(argv)
    logs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, setting in BACKBONES.items():
            logs[name] = train(Path(folder) / name, args.iterations, setting)
    same = {}
    for name, log in logs.items():
        pairs = zip(logs['eager'], log, strict=True)
        apart = [abs(mine['loss'] / eager['loss'] - 1) for eager, mine in pairs]
        same[name] = next((i for i, a in enumerate(apart) if a > TOLERANCE), len(apart))
        # The first iterations compile, and warm up caches.
        seconds = statistics.median(entry['time'] for entry in log[len(log) // 4 :])
        print(
            f'{name:8}  loss {log[0]["loss"]:.4f} ... {log[-1]["loss"]:.4f}, {seconds:.2f} s per '
            f'iteration, within {TOLERANCE:g} of eager for the first {same[name]} of {len(log)}'
        )
    return int(same['compiled'] < same['plain'] / 2)


if __name__ == '__main__':
    sys.exit(main())
