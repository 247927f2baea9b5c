"""Write a model to a file that runs elsewhere."""

import argparse
import time
from pathlib import Path
from typing import Any

from xcit_mm.configs import bit_depth
from xcit_mm.deploy.export import export, report_path
from xcit_mm.deploy.metadata import Options
from xcit_mm.deploy.support import check_packages, check_supported
from xcit_mm.errors import BUILD_ERRORS, UserError
from xcit_mm.inference.predictors import build_model, load_weights
from xcit_mm_runtime import ImageError
from xcit_mm_runtime.files import check_new, check_writable
from xcit_mm_runtime.inputs import find_images, read_image

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
    check_new(out, args.force, '--out writes elsewhere')
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
    with explaining_config(args.config, BUILD_ERRORS):
        model = build_model(cfg)
    options = Options(
        args.format,
        args.backbone,
        args.labels,
        args.uint8,
        args.channel_order,
        args.opset,
        args.precision,
    )
    check_supported(model, options)
    say('loading the weights')
    with explaining_config(args.config, BUILD_ERRORS):
        load_weights(model, cfg, args.checkpoint, args.allow_partial)
    report = export(
        cfg,
        model,
        out,
        options,
        name=Path(args.config.split('::')[-1]).stem,
        checkpoint=args.checkpoint,
        images=images,
        calibration=calibration,
        say=say,
    )
    print(f'Compared with PyTorch:\n{report}')
    size = out.stat().st_size / 1e6
    print(f'Done in {time.perf_counter() - start:.0f} s: {out}, {size:.1f} MB')
    print(f'report: {report_path(out)}')
    return 0
