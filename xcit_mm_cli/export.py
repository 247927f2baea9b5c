"""``xcit-mm export``: write a model to a file that runs elsewhere."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from .options import CHECKPOINT_HELP, add_allow_partial, add_cfg_options, add_config, add_flag

SUFFIXES = {'onnx': '.onnx', 'torch': '.pt2'}
# ONNX Runtime 1.31 has no RoIAlign of version 22.
OPSETS = range(18, 22)
# How many images --calibration uses.
CALIBRATION_IMAGES = 64
# How many of --images are used: four fill all batches of the check.
CHECKED_IMAGES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Write a trained model to one file that runs without PyTorch (ONNX) or without OpenMMLab '
        '(torch.export). The graph takes images of any size, at least 32x32, in batches of any '
        'size. Boxes, suppression and masks are inside. Then the file is run next to the model on '
        'three sizes of images. It is kept only if both agree; a report is written next to it.'
    )
    parser.epilog = (
        'Input "image": float32 (N, C, H, W), normalized, channels in the order of the network, '
        'or raw bytes with --uint8. Outputs: "logits" (N, K, H, W) or "labels" (N, H, W) of a '
        'segmentor; "boxes", "scores", "labels" and "masks" of a detector; "level_0"... of a '
        'backbone. The metadata of the file describe the rest (docs/deploy.md).'
    )
    add_config(parser)
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument(
        '--format',
        choices=SUFFIXES,
        default='onnx',
        help='onnx: for ONNX Runtime and others; torch: a program of torch.export, not for '
        'detectors (default: onnx)',
    )
    parser.add_argument(
        '--out', metavar='FILE', help='the file to write (default: CONFIG.onnx or CONFIG.pt2)'
    )
    add_flag(parser, '--backbone', 'the backbone with its pyramid alone')
    add_flag(parser, '--labels', 'a segmentor gives labels, not logits')
    add_flag(parser, '--uint8', 'take raw bytes (N, C, H, W), and normalize them inside the graph')
    parser.add_argument(
        '--channel-order',
        choices=('rgb', 'bgr'),
        default='rgb',
        help='the order of the raw bytes of --uint8 (default: rgb)',
    )
    parser.add_argument(
        '--opset',
        type=int,
        choices=OPSETS,
        default=18,
        metavar='N',
        help=f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[-1]}; more runtimes know lower "
        'ones (default: 18)',
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        '--fp16',
        dest='precision',
        action='store_const',
        const='float16',
        help='half the size: weights and most products in float16. For GPUs; no faster on a CPU, '
        'where ONNX Runtime computes in float32 anyway',
    )
    precision.add_argument(
        '--int8',
        dest='precision',
        action='store_const',
        const='int8',
        help='linear layers in int8: smaller, and faster on a CPU with instructions for int8, such '
        'as VNNI',
    )
    parser.set_defaults(precision='float32')
    parser.add_argument(
        '--calibration',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB',
        help=f'with --int8: images like those of the training, of which the first '
        f'{CALIBRATION_IMAGES} are used to measure ranges of values, so that convolutions are in '
        'int8 too. Smaller still, but less accurate',
    )
    parser.add_argument(
        '--images',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB',
        help='images to check the file with (default: drawn ones)',
    )
    add_cfg_options(parser)
    add_allow_partial(parser)
    add_flag(parser, '--force', 'overwrite the file if it exists')


def find_conflict(args: argparse.Namespace) -> str | None:
    """Say what is wrong with a combination of arguments."""
    suffix = SUFFIXES[args.format]
    if args.out and Path(args.out).suffix != suffix:
        return f'--out {args.out} must end in {suffix} for --format {args.format}'
    if args.channel_order == 'bgr' and not args.uint8:
        return (
            '--channel-order is for --uint8. Without it, the graph takes the channels in the '
            'order of the network, which its metadata name'
        )
    if args.precision != 'float32' and args.format != 'onnx':
        return '--fp16 and --int8 are for --format onnx'
    if args.calibration and args.precision != 'int8':
        return '--calibration is for --int8: nothing else needs the ranges of values'
    return None


def run(args: argparse.Namespace) -> int:
    from xcit_mm.configs import bit_depth
    from xcit_mm.deploy.export import export, report_path
    from xcit_mm.deploy.metadata import Options
    from xcit_mm.deploy.support import check_packages, check_supported
    from xcit_mm.engine.config import dense_scope_of, explaining_config, load_config
    from xcit_mm.errors import UserError
    from xcit_mm.inference.predictors import build_model, load_weights

    from .common import check_checkpoint, check_output, config_name

    check_packages(args.format)
    cfg = load_config(args.config, args.cfg_options)
    scope = dense_scope_of(cfg, 'export')
    if args.labels and (args.backbone or scope != 'mmseg'):
        raise UserError('--labels is for whole segmentors: nothing else gives labels of pixels.')
    check_checkpoint(args.checkpoint)
    name = config_name(args.config)
    out = Path(args.out or name + SUFFIXES[args.format])
    check_output(out, args.force, '--out writes elsewhere')
    start = time.perf_counter()

    def say(step: str) -> None:
        print(f'[{time.perf_counter() - start:4.0f} s] {step} ...', flush=True)

    depth = bit_depth(cfg)
    images = read_images(args.images, CHECKED_IMAGES, depth)
    calibration = read_images(args.calibration, CALIBRATION_IMAGES, depth) or None
    say('building the model')
    with explaining_config(args.config):
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
    with explaining_config(args.config):
        load_weights(model, cfg, args.checkpoint, args.allow_partial)
    report = export(
        cfg,
        model,
        out,
        options,
        name=name,
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


def read_images(inputs: list[str] | None, limit: int, depth: int | None) -> list[Any]:
    """Read the first images of what the user names."""
    from xcit_mm.errors import UserError
    from xcit_mm_runtime import ImageError, read_image
    from xcit_mm_runtime.inputs import find_images

    paths = find_images(inputs) if inputs else []
    try:
        return [read_image(path, depth) for path in paths[:limit]]
    except ImageError as error:
        raise UserError(f'{error}.') from None
