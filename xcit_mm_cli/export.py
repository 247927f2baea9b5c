"""Write a model to a file that runs elsewhere."""

import argparse
import time
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.compat import revert_sync_bn
from xcit_mm.configs import bit_depth
from xcit_mm.deploy.export import Options, export, report_path
from xcit_mm.deploy.support import check_packages, check_supported
from xcit_mm.errors import BUILD_ERRORS, UserError
from xcit_mm.inference import build_inferencer, find_images, read_image
from xcit_mm_runtime import ImageError
from xcit_mm_runtime.files import check_writable

from .arguments import CALIBRATION_IMAGES
from .common import (
    check_checkpoint,
    command,
    explaining_config,
    load_config,
    task_of,
)

# How many images of the user are used: four fill all batches of the check.
CHECKED = 4
SUFFIXES = {'onnx': '.onnx', 'torch': '.pt2'}


def output_path(args: argparse.Namespace) -> Path:
    """Where the file goes; raises if it cannot, or if it is there already."""
    suffix = SUFFIXES[args.format]
    out = Path(args.out or Path(args.config.split('::')[-1]).with_suffix(suffix).name)
    if out.suffix != suffix:
        raise UserError(f'--out {out} must end in {suffix} for --format {args.format}.')
    if out.exists() and not args.force:
        raise UserError(f'{out} already exists; --force overwrites it, --out writes elsewhere.')
    check_writable(out)
    return out


def check_options(args: argparse.Namespace, task: str) -> None:
    """Raise if options contradict each other or the task."""
    if args.labels and (args.backbone or task != 'mmseg'):
        raise UserError('--labels is for whole segmentors: nothing else gives labels of pixels.')
    if args.channel_order == 'bgr' and not args.uint8:
        raise UserError(
            '--channel-order is for --uint8. Without it, the graph takes the channels in the '
            'order of the network, which its metadata name.'
        )
    if args.precision != 'float32' and args.format != 'onnx':
        raise UserError('--fp16 and --int8 are for --format onnx.')
    if args.calibration and args.precision != 'int8':
        raise UserError('--calibration is for --int8: nothing else needs the ranges of values.')


def read_images(inputs: list[str] | None, limit: int, depth: int | None) -> list[Any]:
    """The first images of what the user names."""
    paths = find_images(inputs) if inputs else []
    try:
        return [read_image(path, depth) for path in paths[:limit]]
    except ImageError as error:
        raise UserError(f'{error}.') from None


def check_config(cfg: Config, args: argparse.Namespace) -> None:
    """Build the model without weights and raise if it cannot be exported."""
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    with explaining_config(args.config, BUILD_ERRORS):
        model = MODELS.build(cfg.model)
    check_supported(model, args.format, args.backbone)


@command('export')
def main(args: argparse.Namespace) -> int:
    check_packages(args.format)
    cfg = load_config(args.config, args.cfg_options)
    task = task_of(cfg)
    if task == 'xcit_mm':
        raise UserError(
            'export is for detectors, segmentors and their backbones; this config is for '
            'pre-training.'
        )
    check_options(args, task)
    check_checkpoint(args.checkpoint)
    start = time.perf_counter()

    def say(step: str) -> None:
        print(f'[{time.perf_counter() - start:4.0f} s] {step} ...', flush=True)

    depth = bit_depth(cfg)
    out, images = output_path(args), read_images(args.images, CHECKED, depth)
    calibration = read_images(args.calibration, CALIBRATION_IMAGES, depth) or None
    say('building the model')
    check_config(cfg, args)
    say('loading the weights')
    with explaining_config(args.config, BUILD_ERRORS):
        inferencer = build_inferencer(cfg, task, args.checkpoint, 'cpu', args.allow_partial)
    options = Options(
        args.format,
        args.backbone,
        args.labels,
        args.uint8,
        args.channel_order,
        args.opset,
        args.precision,
    )
    report = export(
        cfg,
        inferencer.model,
        out,
        options,
        name=Path(args.config.split('::')[-1]).stem,
        checkpoint=args.checkpoint,
        stored_meta=inferencer.model.dataset_meta,
        images=images,
        calibration=calibration,
        say=say,
    )
    print(f'Compared with PyTorch:\n{report}')
    size = out.stat().st_size / 1e6
    print(f'Done in {time.perf_counter() - start:.0f} s: {out}, {size:.1f} MB')
    print(f'report: {report_path(out)}')
    return 0
