"""Measures images without a size limit: time and memory of ``--whole`` as images grow.

    python -m dev.whole_image                      # 16 megapixels to 1 gigapixel, within 4GB
    python -m dev.whole_image --sides 4096 8192    # some of them
    python -m dev.whole_image --window 2048        # the sliding window instead
    python -m dev.whole_image --spread             # one image over 1, 2 and 4 processes

Each measurement is a process of its own. The model is Semantic FPN on XCiT-N12/16 with random
weights and 6 classes, unless --config and --checkpoint name another. The images are drawn.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from dev.memory import reset_peak, status
from xcit_mm.large.units import parse_bytes
from xcit_mm.tables import format_table

SIDES = (4096, 8192, 16384, 32768)
CONFIG = 'xcit_mm::segmentation/sem_fpn_xcit_n12_16_80k.py'
# Images up to this side are compared with mmseg's own result for the whole image.
COMPARED = 4096
DRAWN = 512
# As many as a map of land cover has.
CLASSES = 6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('--sides', type=int, nargs='+', default=SIDES)
    parser.add_argument('--memory', default='4GB')
    parser.add_argument('--config', default=CONFIG)
    parser.add_argument('--checkpoint')
    parser.add_argument('--window', type=int)
    parser.add_argument('--overlap', type=int, default=256)
    parser.add_argument('--spread', action='store_true')
    parser.add_argument('--folder', type=Path, help='where images and tokens go')
    parser.add_argument('--one', type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        measure = spread if args.spread else segment
        print(json.dumps(measure(args, args.one)))
        return 0
    rows = [row for side in args.sides for row in run(args, side)]
    print_table(rows)
    return 0


def run(args: argparse.Namespace, side: int) -> Iterator[dict[str, Any]]:
    """Measure one size in processes of their own."""
    command = [sys.executable, '-m', 'dev.whole_image', *sys.argv[1:], '--one', str(side)]
    for count in (1, 2, 4) if args.spread else (1,):
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            port = str(s.getsockname()[1])
        common = {'WORLD_SIZE': str(count), 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': port}
        started = [
            subprocess.Popen(
                command, env={**os.environ, **common, 'RANK': str(i)}, stdout=subprocess.PIPE
            )
            for i in range(count)
        ]
        printed = [process.communicate()[0].decode().splitlines() for process in started]
        if any(process.returncode for process in started):
            raise SystemExit(f'{side}: a process failed')
        rows = [json.loads(lines[-1]) for lines in printed]
        yield max(rows, key=lambda row: row['peak MB'])


def draw(path: Path, side: int) -> Path:
    """A picture of discs on a background that changes slowly, the same for the same side."""
    import tifffile

    def drawn() -> Iterator[np.ndarray]:
        random = np.random.default_rng(0)
        for top in range(0, side, DRAWN):
            for left in range(0, side, DRAWN):
                shade = [127 + 100 * np.sin(4 * x / side) for x in (top, left, top + left)]
                tile = np.full((DRAWN, DRAWN, 3), shade, np.uint8)
                for _ in range(8):
                    x, y, radius = (int(n) for n in random.integers(8, DRAWN, 3))
                    color = [int(n) for n in random.integers(0, 256, 3)]
                    cv2.circle(tile, (x, y), radius // 6, color, -1)
                yield tile

    if not path.exists():
        tifffile.imwrite(
            path, drawn(), shape=(side, side, 3), dtype=np.uint8, tile=(DRAWN, DRAWN),
            photometric='rgb', bigtiff=True,
        )  # fmt: skip
    return path


def load(args: argparse.Namespace) -> Any:
    import torch
    from mmengine.registry import init_default_scope

    from xcit_mm_cli.common import load_config

    cfg = load_config(args.config)
    init_default_scope(cfg.default_scope)
    if args.checkpoint is None:
        from mmseg.registry import MODELS

        torch.manual_seed(0)
        cfg.model.backbone.init_cfg = None
        cfg.model.decode_head.num_classes = CLASSES
        return MODELS.build(cfg.model).eval()
    from xcit_mm.inference import load_model

    return load_model(cfg, args.checkpoint, 'cpu')


def folder_of(args: argparse.Namespace) -> Path:
    folder = args.folder or Path(tempfile.gettempdir()) / 'whole_image'
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def segment(args: argparse.Namespace, side: int) -> dict[str, Any]:
    """Segment one image, whole or by windows."""
    from xcit_mm.large import open_image
    from xcit_mm.large.labels import write_tiff
    from xcit_mm.large.segment import WholeSegmentation
    from xcit_mm.large.sliding import segment_windows

    model, folder = load(args), folder_of(args)
    image = open_image(draw(folder / f'{side}.tif', side))
    out = folder / f'{side}_labels.tif'
    tokens = folder / f'{side}_tokens'
    times: dict[str, float] = {}

    def report(what: str, done: int, total: int) -> None:
        times[what] = time.monotonic() - began

    reset_peak()
    began, used = time.monotonic(), time.process_time()
    row: dict[str, Any] = {'side': side, 'megapixels': side**2 / 2**20}
    if args.window:
        labels = segment_windows(
            model, image, tokens, args.window, args.overlap, lambda *d: report('windows', *d)
        )
        write_tiff(out, labels, [])
    else:
        run = WholeSegmentation(model, tokens, parse_bytes(args.memory), report=report)
        row['plan'] = run.plan(image).describe()
        run(image, out)
    row |= {'seconds': time.monotonic() - began, 'processor seconds': time.process_time() - used}
    row['peak MB'] = status('VmHWM')
    row |= {f'{what} until s': seconds for what, seconds in times.items()}
    if side <= COMPARED and not args.window:
        row['largest loss of logit'] = compare(model, image, out)
    return row


def compare(model: Any, image: Any, out: Path) -> float:
    """How far the logit of a label is from the highest, over the largest logit; 0 if all agree."""
    import tifffile
    import torch
    from torch.nn import functional

    from xcit_mm.large.images import Prepare
    from xcit_mm.large.windows import whole

    size = image.shape[:2]
    inputs = Prepare(model.backbone.in_channels, model.data_preprocessor)(image.read(whole(size)))
    labels = torch.from_numpy(tifffile.imread(out).astype(np.int64))
    with torch.no_grad():
        coarse = model.decode_head(model.extract_feat(inputs))
    chosen, highest = torch.full(size, -torch.inf), torch.full(size, -torch.inf)
    # As mmseg does, but class by class: all of them at the size of the image take gigabytes.
    for label in range(coarse.shape[1]):
        logit = functional.interpolate(
            coarse[:, label : label + 1], size, mode='bilinear',
            align_corners=model.decode_head.align_corners,
        )[0, 0]  # fmt: skip
        highest = torch.maximum(highest, logit)
        chosen = torch.where(labels == label, logit, chosen)
    return float((highest - chosen).max() / coarse.abs().max())


def spread(args: argparse.Namespace, side: int) -> dict[str, Any]:
    """Extract features of one image in this process's part of a group."""
    import torch
    from torch import distributed

    from xcit_mm.large import SpreadBackbone, open_image
    from xcit_mm.large.costs import layer_bytes
    from xcit_mm.large.images import Prepare
    from xcit_mm.large.windows import Window

    torch.set_num_threads(1)
    distributed.init_process_group('gloo')
    model, folder = load(args), folder_of(args)
    path = folder / f'{side}.tif'
    if distributed.get_rank() == 0:
        draw(path, side)
    distributed.barrier()
    image, backbone = open_image(path), model.backbone
    shared = SpreadBackbone(backbone)
    low, high = shared.pixel_rows(side)
    pixels = Prepare(3, model.data_preprocessor)(image.read(Window(low, high, 0, side)))
    before = status('VmRSS')
    reset_peak()
    began = time.monotonic()
    with torch.no_grad():
        levels = shared(pixels, side, gather=False)
    seconds = time.monotonic() - began
    size, rank = shared.group.size, shared.group.rank
    costs = layer_bytes(backbone.embed_dims, -(-side // backbone.patch_size), min(rank, 1) + 1)
    if rank in (0, size - 1):
        costs = layer_bytes(backbone.embed_dims, -(-side // backbone.patch_size), min(size - 1, 1))
    expected = len(backbone.layers) * (costs.sums + costs.rows) if size > 1 else 0
    sent = shared.group.sent
    return {
        'side': side, 'processes': size, 'seconds': seconds,
        'peak MB': status('VmHWM') - before,
        'levels MB': sum(level.numel() for level in levels) * 4 / 2**20,
        'sums and rows sent MB': (sent['sums'] + sent['rows']) / 2**20,
        'as computed MB': expected / 2**20,
    }  # fmt: skip


def print_table(rows: list[dict[str, Any]]) -> None:
    names = dict.fromkeys(name for row in rows for name in row)
    print(format_table([{name: row.get(name) for name in names} for row in rows], 'markdown'))
    if len({row['side'] for row in rows}) > 1:
        sides = np.log([row['side'] ** 2 for row in rows])
        for what in ('seconds', 'processor seconds', 'peak MB'):
            if any(what not in row for row in rows):
                continue
            slope = np.polyfit(sides, np.log([row[what] for row in rows]), 1)[0]
            print(f'{what} grow with the number of pixels to the power of {slope:.3f}')


if __name__ == '__main__':
    sys.exit(main())
