"""Run a detector or a segmentor on images."""

import argparse
from pathlib import Path

from ..errors import UserError
from ..inference import build_inferencer, find_images, infer, results_path
from .common import check_checkpoint, command, load_config, task_of


@command('infer')
def main(args: argparse.Namespace) -> int:
    images = find_images(args.inputs)
    cfg = load_config(args.config)
    task = task_of(cfg)
    check_checkpoint(args.checkpoint)
    out_dir = Path(args.out_dir)
    results = results_path(task, out_dir)
    if results.exists() and not args.force:
        raise UserError(
            f'{results} already exists; --force overwrites it, --out-dir writes elsewhere.'
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    inferencer = build_inferencer(cfg, task, args.checkpoint, args.device)
    skipped = infer(inferencer, task, images, out_dir, None if args.no_vis else args.score_thr)
    for path, reason in skipped.items():
        print(f'skipped, {reason}: {path}')
    print(f'{len(images) - len(skipped)} of {len(images)} images; predictions: {results}')
    if not args.no_vis:
        print(f'pictures: {out_dir / "vis"}')
    return 1 if skipped else 0
