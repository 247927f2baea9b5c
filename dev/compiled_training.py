"""``python -m dev.compiled_training``: a training with compiled layers next to one without.

Trains Mask R-CNN on XCiT-N12/8 on the drawn shapes twice from the same seed, and prints how far the
losses are apart and what an iteration takes.
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
TOLERANCE = 1e-3


def train(folder: Path, iterations: int, compiled: bool) -> list[dict[str, Any]]:
    """Return what a training logged, one entry per iteration."""
    settings = [
        f'model.backbone.compile={compiled}',
        f'train_cfg.max_iters={iterations}',
        'default_hooks.logger.interval=1',
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
    with tempfile.TemporaryDirectory() as folder:
        eager, compiled = (
            train(Path(folder) / name, args.iterations, compiled)
            for name, compiled in (('eager', False), ('compiled', True))
        )
    apart = [abs(a['loss'] - b['loss']) / a['loss'] for a, b in zip(eager, compiled, strict=True)]
    for name, log in (('eager', eager), ('compiled', compiled)):
        # The first iterations compile, and warm up caches.
        seconds = statistics.median(entry['time'] for entry in log[len(log) // 4 :])
        print(f'{name:8}  loss {log[0]["loss"]:.4f} ... {log[-1]["loss"]:.4f}  {seconds:.2f} s')
    print(f'largest relative difference of a loss: {max(apart):.1e} (at most {TOLERANCE:g})')
    return int(max(apart) > TOLERANCE)


if __name__ == '__main__':
    sys.exit(main())
