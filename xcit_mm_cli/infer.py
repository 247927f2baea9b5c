"""``xcit-mm infer``: run a detector or a segmentor on images and videos."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .options import (
    CHECKPOINT_HELP,
    add_allow_partial,
    add_cfg_options,
    add_device,
    add_flag,
    fraction,
    positive,
)

if TYPE_CHECKING:
    from mmengine.config import Config

    from xcit_mm.inference import AnnotationFile
    from xcit_mm.inference.predictors import CheckpointPredictor
    from xcit_mm_runtime.inputs import MediaSource
    from xcit_mm_runtime.predict import Predictor

# Defaults: what differs from them was asked for.
SCORE_THR, OVERLAP = 0.3, 256
ELSEWHERE = '--out-dir writes elsewhere'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Detect or segment in images and videos. Writes pictures (vis/) and predictions: COCO JSON '
        'for detection, label PNGs for segmentation. For a video, writes a video with the '
        'predictions drawn in. '
        'If interrupted, rerun it to continue. Exit status 1 if an image was skipped. '
        'Several processes share the inputs (see below).'
    )
    parser.add_argument(
        'inputs',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB|@LIST|VIDEO|CAMERA',
        help='images, videos, or the number of a camera (0 is the first; Ctrl-C ends its video). '
        'Quote globs that match many files. @LIST is a text file with one path per line, relative '
        'to the current folder',
    )
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument('--config', help='a config file, with --checkpoint')
    models.add_argument('--model', metavar='FILE', help='a model that "xcit-mm export" wrote')
    add_cfg_options(parser)
    parser.add_argument('--checkpoint', help=CHECKPOINT_HELP)
    add_allow_partial(parser)
    parser.add_argument(
        '--out-dir', default='work_dirs/infer', help='folder for results (default: %(default)s)'
    )
    add_device(parser)
    add_flag(
        parser,
        '--compile',
        'compile the layers of XCiT with torch.compile first, which takes up to a minute; pays for '
        'hundreds of images, of any size. Needs PyTorch 2.7',
    )
    parser.add_argument(
        '--score-thr',
        type=fraction,
        default=SCORE_THR,
        help='draw only boxes that score above this (default: %(default)s)',
    )
    parser.add_argument(
        '--ann-file',
        metavar='FILE',
        help="annotations in COCO's layout that give the ids of images (by file name) and of "
        'categories (by name), so that pycocotools can score the predictions (default: images '
        'are numbered from 1)',
    )
    add_flag(parser, '--no-vis', 'predictions only, no pictures')
    add_flag(parser, '--force', 'overwrite earlier results')
    add_flag(
        parser,
        '--retry-skipped',
        'when continuing, try again what was skipped before the interruption',
    )
    _add_processes(parser)
    _add_ray(parser)
    _add_large_images(parser)


def _add_processes(parser: argparse.ArgumentParser) -> None:
    several = parser.add_argument_group(
        'several processes',
        'For jobs of an array, and for processes that torchrun, srun or mpirun start, on machines '
        'with a common folder. Each writes its own file to OUT_DIR/shards. If some are killed, '
        'rerun the same command: it does what is missing. At the end, "xcit-mm merge OUT_DIR" '
        'writes what one process would have written. Exit status 0 if a process did its share; '
        'merge reports what was skipped.',
    )
    several.add_argument(
        '--shard',
        type=_shard,
        metavar='I/N',
        help='do the I-th of N shares, 1/N to N/N, if there is no launcher',
    )


def _add_ray(parser: argparse.ArgumentParser) -> None:
    ray = parser.add_argument_group(
        'a Ray cluster',
        'Runs an exported model (--model) on all machines of a cluster, which must see the model, '
        'the images and OUT_DIR at the same paths. Inputs may also be addresses such as '
        's3://bucket/photos, and Parquet files with a column "bytes" or "path". Writes a row per '
        'image to OUT_DIR/shards. Work of processes and machines that die is repeated. '
        '"xcit-mm merge OUT_DIR" then writes what one process would have written.',
    )
    ray.add_argument(
        '--ray',
        nargs='?',
        const='',
        metavar='ADDRESS',
        help='use the cluster at this address (default: that of RAY_ADDRESS, else this machine)',
    )
    ray.add_argument(
        '--ray-workers',
        type=positive,
        metavar='N',
        help='processes with a model (default: one per processor or, with --device cuda, per GPU)',
    )
    ray.add_argument(
        '--batch-size',
        type=positive,
        metavar='N',
        help='images of one size in one run of the model (default: 1; more pays only on GPUs)',
    )
    ray.add_argument('--rows', choices=('parquet', 'jsonl'), help='format (default: parquet)')


def _add_large_images(parser: argparse.ArgumentParser) -> None:
    large = parser.add_argument_group(
        'large images',
        'TIFF, .npy and zarr images are read by windows, at their own resolution. Labels are '
        'written as TIFFs, with the geo-reference of the image, and pictures (vis/) are small '
        'previews.',
    )
    how = large.add_mutually_exclusive_group()
    how.add_argument(
        '--whole',
        action='store_true',
        help='segment images of any size, with the result of segmenting them at once',
    )
    how.add_argument(
        '--window',
        type=positive,
        metavar='PIXELS',
        help='slide a window of this size over the image instead',
    )
    large.add_argument(
        '--memory',
        metavar='AMOUNT',
        help='what the process may use with --whole, as in 4GB (default: no limit)',
    )
    large.add_argument(
        '--overlap',
        type=int,
        default=OVERLAP,
        metavar='PIXELS',
        help='what neighboring windows have in common (default: %(default)s)',
    )


def _shard(text: str) -> tuple[int, int]:
    """Parse I/N; return the index, from 0, and the number of shares."""
    part, _, count = text.partition('/')
    if not (part.isdecimal() and count.isdecimal() and 1 <= int(part) <= int(count)):
        raise argparse.ArgumentTypeError(f'{text!r} must be I/N, from 1/N to N/N')
    return int(part) - 1, int(count)


def find_conflict(args: argparse.Namespace) -> str | None:
    """Say what is wrong with a combination of arguments."""
    if args.memory is not None and not args.whole:
        return '--memory limits what --whole uses: give both'
    if args.overlap != OVERLAP and args.window is None:
        return '--overlap is what the windows of --window have in common: give both'
    if args.window is not None and not 0 <= args.overlap < args.window:
        return f'--overlap must be from 0 to {args.window - 1}, less than --window'
    if args.whole or args.window is not None:
        if args.model:
            return (
                '--whole and --window run a checkpoint: give --config and --checkpoint, not --model'
            )
        if args.retry_skipped:
            return '--whole and --window skip no image: drop --retry-skipped'
    if args.compile and (args.model or args.whole):
        if args.model:
            return '--compile is for a checkpoint, not for an exported model: drop --compile'
        return '--whole runs the network in pieces, which are not compiled: drop --compile'
    if args.whole and (args.ann_file or args.score_thr != SCORE_THR):
        option = '--ann-file' if args.ann_file else '--score-thr'
        return f'{option} is for detectors, and --whole for segmentors: drop one of them'
    if args.ray is None:
        for option in ('ray_workers', 'batch_size', 'rows'):
            if getattr(args, option):
                return f'--{option.replace("_", "-")} is for --ray: give both'
    elif args.config or args.shard:
        return '--ray runs an exported model and shares the inputs: give --model, and no --shard'
    elif args.device not in (None, 'cpu', 'cuda'):
        return '--device must be cpu or cuda with --ray, which chooses the GPUs'
    if args.config:
        return None if args.checkpoint else '--config needs --checkpoint'
    options = ('checkpoint', 'cfg_options', 'allow_partial', *(['device'] * (args.ray is None)))
    given = [f'--{name.replace("_", "-")}' for name in options if getattr(args, name)]
    return f'--model is complete in itself and runs on the CPU: drop {given[0]}' if given else None


def run(args: argparse.Namespace) -> int:
    import torch

    from xcit_mm.errors import UserError
    from xcit_mm.inference import infer
    from xcit_mm.inference.processes import device_of, this_process
    from xcit_mm.inference.shards import EVERYTHING, Shard
    from xcit_mm_runtime.inputs import find_sources
    from xcit_mm_runtime.predict import results_path

    from .common import print_left_out
    from .merge import print_results

    if args.ray is not None:
        return infer_with_ray(args)
    process = this_process(Shard(*args.shard) if args.shard else None)
    is_alone = process.shard == EVERYTHING
    if args.whole or args.window is not None:
        if not is_alone:
            raise UserError('--whole and --window run in one process; see docs/large_images.md.')
        return infer_large(args)
    sources = find_sources(args.inputs)
    if not is_alone:
        check_shared(args, sources)
        args.device = args.device or device_of(process.local_rank, torch.cuda.device_count())
    chosen = choose_model(args)
    out_dir = Path(args.out_dir)
    annotations = open_annotations(args, chosen.task)
    check_results(results_path(chosen.task, out_dir), sources, args)
    if process.shard.index == 0:
        print_left_out(args.inputs)
    key = hash_settings(chosen.settings, args, sources)
    score_thr = None if args.no_vis else args.score_thr
    records = infer(
        chosen.build(), sources, out_dir, score_thr, key, annotations, process, args.retry_skipped
    )
    job, share, skipped = records.job, len(records.share), records.list_skipped()
    if not is_alone:
        print(
            f'shard {process.shard}: {share - len(skipped)} of {share} inputs, {len(skipped)} '
            f'skipped. When all shards are done: xcit-mm merge {out_dir}'
        )
        return 0  # torchrun would stop the other processes
    print_results(job, out_dir, skipped, job.inputs - len(skipped))
    if not args.no_vis:
        print(f'pictures: {out_dir / "vis"}')
    return 1 if skipped else 0


def infer_with_ray(args: argparse.Namespace) -> int:
    """Run on a Ray cluster."""
    from xcit_mm.errors import UserError

    try:
        from xcit_mm.inference.on_ray import RaySettings, find_ray_images, infer_on_ray
    except ImportError as error:
        raise UserError(f'--ray needs Ray ({error}): pip install "ray[data]" pyarrow') from None
    from xcit_mm.inference.shards import FOLDER
    from xcit_mm_runtime import load
    from xcit_mm_runtime.predict import results_path

    from .common import print_left_out

    images, model, out_dir = find_ray_images(args.inputs), load(args.model), Path(args.out_dir)
    model.check_predicts()
    annotations = open_annotations(args, model.task)
    check_results(results_path(model.task, out_dir), images.sources, args)
    print_left_out(args.inputs)
    records = infer_on_ray(
        model,
        images,
        out_dir,
        None if args.no_vis else args.score_thr,
        hash_settings(model.metadata.to_dict(), args, images.sources),
        annotations,
        RaySettings(
            args.ray or None,
            args.ray_workers,
            device=args.device or 'cpu',
            batch_size=args.batch_size or 1,
            rows=args.rows or 'parquet',
        ),
        args.retry_skipped,
    )
    count, skipped, missing = records.job.inputs, len(records.skipped), records.count_left()
    print(
        f'{count - skipped - missing} of {count} images, {skipped} skipped\nrows: '
        f'{out_dir / FOLDER}\nFor what one process would have written: xcit-mm merge {out_dir}'
    )
    if missing:
        raise UserError(f'{missing} images are missing: rerun the command.')
    return 0


class ChosenModel(NamedTuple):
    """The model that the arguments name, before it is built.

    Args:
        task (str): ``detection`` or ``segmentation``.
        settings (dict): What identifies it, next to its file.
        build (callable): Returns it, ready to predict.
    """

    task: str
    settings: dict[str, Any]
    build: Callable[[], Predictor]


def choose_model(args: argparse.Namespace) -> ChosenModel:
    """Return the model of ``--model``, or that of ``--config`` and ``--checkpoint``."""
    import xcit_mm_runtime
    from xcit_mm.engine.config import explaining_config
    from xcit_mm.inference import load_predictor

    if args.model:
        # As for PyTorch; torchrun sets it to 1, so that processes do not share processors.
        threads = os.environ.get('OMP_NUM_THREADS', '')
        model = xcit_mm_runtime.load(args.model, int(threads) if threads.isdecimal() else 0)
        model.check_predicts()
        return ChosenModel(model.task, model.metadata.to_dict(), lambda: model)
    cfg, task = read_config(args)

    def build() -> Predictor:
        with explaining_config(args.config):
            predictor = load_predictor(cfg, args.checkpoint, args.device, args.allow_partial)
        if args.compile:
            compile_now(predictor)
        return predictor

    return ChosenModel(task, cfg.to_dict(), build)


def read_config(args: argparse.Namespace) -> tuple[Config, str]:
    """Return the config and its task; raise if the checkpoint or the device is missing."""
    from xcit_mm.engine.config import dense_scope_of, load_config
    from xcit_mm.inference import TASKS

    from .common import check_checkpoint, check_device

    cfg = load_config(args.config, args.cfg_options)
    task = TASKS[dense_scope_of(cfg, 'infer')]
    if args.compile:
        switch_compiler_on(cfg)
    check_checkpoint(args.checkpoint)
    check_device(args.device)
    return cfg, task


def switch_compiler_on(cfg: Config) -> None:
    """Let the backbone of a config compile its layers.

    Args:
        cfg (Config): The config.
    """
    from xcit_mm.configs import type_name
    from xcit_mm.errors import UserError
    from xcit_mm.models.fast import check_compiler

    try:
        check_compiler()
    except ValueError as error:
        raise UserError(f'--compile: {error}.') from None
    backbone = cfg.model.get('backbone', {})
    if type_name(backbone) != 'XCiT':
        raise UserError(
            f'--compile compiles XCiT, and the backbone is {type_name(backbone)}: drop --compile.'
        )
    backbone['compile'] = True


def compile_now(predictor: CheckpointPredictor) -> None:
    """Compile a model, with a black image; the size of the images to come does not matter.

    Args:
        predictor (CheckpointPredictor): The model.
    """
    import time

    import numpy as np

    from xcit_mm.errors import UserError
    from xcit_mm_runtime.model import first_line

    print('compiling ...', flush=True)
    start = time.perf_counter()
    try:
        predictor(np.zeros((480, 640, predictor.model.backbone.in_channels), np.uint8))
    except RuntimeError as error:
        if not type(error).__module__.startswith(('torch._dynamo', 'torch._inductor')):
            raise
        raise UserError(
            f'PyTorch cannot compile here: {first_line(error)}. Drop --compile.'
        ) from error
    print(f'compiled in {time.perf_counter() - start:.0f} s', flush=True)


def open_annotations(args: argparse.Namespace, task: str) -> AnnotationFile | None:
    """Open the annotation file that gives a detector's ids, if there is one.

    Args:
        args (Namespace): The arguments.
        task (str): ``detection`` or ``segmentation``, for which options of detectors are refused.
    """
    from xcit_mm.errors import UserError
    from xcit_mm.inference import AnnotationFile

    if task != 'detection':
        if args.ann_file:
            raise UserError(
                '--ann-file gives the ids of detections; a segmentor writes label PNGs.'
            )
        if args.score_thr != SCORE_THR:
            raise UserError('--score-thr selects the boxes to draw; a segmentor has none.')
    return AnnotationFile(args.ann_file) if args.ann_file else None


def check_shared(args: argparse.Namespace, sources: Sequence[MediaSource]) -> None:
    """Raise for what several processes cannot do together.

    Args:
        args (Namespace): The arguments.
        sources (Sequence[MediaSource]): The inputs.
    """
    from xcit_mm.errors import UserError

    if args.force:
        raise UserError(
            'Of several processes, one with --force would delete what the others have written: '
            f'delete {args.out_dir} before you start them, or write elsewhere with --out-dir.'
        )
    cameras = [source for source in sources if isinstance(source, int)]
    if cameras:
        raise UserError(f'Camera {cameras[0]} can only be recorded by one process.')


def check_results(results: Path, sources: Sequence[MediaSource], args: argparse.Namespace) -> None:
    """Raise if there are finished results; delete unfinished ones if the user wants to start over.

    Args:
        results (Path): Where predictions go.
        sources (Sequence[MediaSource]): The inputs.
        args (Namespace): The arguments.
    """
    from xcit_mm.errors import UserError
    from xcit_mm.inference import is_unfinished
    from xcit_mm.inference.shards import delete_shards
    from xcit_mm_runtime.files import check_new
    from xcit_mm_runtime.inputs import ResultNames, is_video

    videos = [i for i, source in enumerate(sources) if is_video(source)]
    if videos and args.no_vis:
        raise UserError(
            f'--no-vis leaves nothing to write for {sources[videos[0]]}: the result of a video is '
            'a video with the predictions drawn in.'
        )
    out_dir, outputs = results.parent, [results]
    if videos:
        names = ResultNames(sources)
        outputs += [out_dir / 'vis' / f'{names[video]}.mp4' for video in videos]
    # First the results, then the shards, which other processes write before any result.
    existing = [path for path in outputs if path.exists()]
    if args.force:
        delete_shards(out_dir)
    elif existing and not is_unfinished(out_dir):
        check_new(existing[0], args.force, ELSEWHERE)
    out_dir.mkdir(parents=True, exist_ok=True)


def hash_settings(
    settings: dict[str, Any], args: argparse.Namespace, sources: Sequence[MediaSource]
) -> str:
    """Return a hash of everything that affects the results: only the same command continues.

    Args:
        settings (dict): The config, or the metadata of an exported model.
        args (Namespace): The arguments.
        sources (Sequence[MediaSource]): The inputs.
    """
    files = [
        Path(name).expanduser() for name in (args.model or args.checkpoint, args.ann_file) if name
    ]
    saved = [(str(file), file.stat().st_mtime_ns if file.is_file() else None) for file in files]
    options = [args.no_vis, args.score_thr, args.allow_partial]
    key = hashlib.sha256(json.dumps([settings, saved, options], default=str).encode())
    for source in sources:
        key.update(json.dumps(source).encode())
    return key.hexdigest()


def infer_large(args: argparse.Namespace) -> int:
    """Run on large images, one after another."""
    from xcit_mm.configs import bit_depth, category_ids
    from xcit_mm.engine.config import explaining_config
    from xcit_mm.errors import UserError
    from xcit_mm.inference import load_model
    from xcit_mm.inference.ids import own_ids
    from xcit_mm.large.infer import (
        UNFINISHED,
        check_names,
        detect_large,
        find_large_images,
        segment_large,
    )
    from xcit_mm.large.plan import parse_bytes
    from xcit_mm_runtime.files import check_new
    from xcit_mm_runtime.inputs import to_network_depth
    from xcit_mm_runtime.predict import results_path

    try:
        memory = None if args.memory is None else parse_bytes(args.memory)
    except ValueError as error:
        raise UserError(f'--memory {error}.') from None
    paths = find_large_images(args.inputs)
    check_names(paths)
    (cfg, task), out_dir = read_config(args), Path(args.out_dir)
    if task == 'detection' and args.whole:
        raise UserError(
            '--whole is for segmentation: boxes cannot be put together from parts of a feature map '
            'without all of it. For detection, use --window 2048 --overlap 256.'
        )
    annotations = open_annotations(args, task)
    labels = [out_dir / 'labels' / f'{path.stem}.tif' for path in paths]
    outputs = [results_path(task, out_dir)] if task == 'detection' else labels
    unfinished = out_dir / UNFINISHED
    if args.force:
        shutil.rmtree(unfinished, ignore_errors=True)
    elif all(path.exists() for path in outputs) and not unfinished.exists():
        check_new(outputs[0], args.force, ELSEWHERE)
    with explaining_config(args.config):
        model = load_model(cfg, args.checkpoint, args.device, args.allow_partial)
    scale = functools.partial(
        to_network_depth, channels=model.backbone.in_channels, bit_depth=bit_depth(cfg) or 16
    )
    if task == 'detection':
        classes, sources = model.dataset_meta['classes'], [str(path) for path in paths]
        if annotations is None:
            ids = own_ids(sources, classes, category_ids(cfg, classes))
        else:
            ids = annotations.ids(sources, classes)
        score_thr = None if args.no_vis else args.score_thr
        detect_large(model, paths, outputs[0], ids, args.window, args.overlap, score_thr, scale)
        print(f'predictions: {outputs[0]}')
        return 0
    for path, out in zip(paths, outputs, strict=True):
        if out.exists() and not args.force and not (unfinished / path.stem).exists():
            continue  # done before an interruption
        key = hash_settings(cfg.to_dict(), args, [str(path)])
        try:
            segment_large(
                model,
                path,
                out_dir,
                memory=memory,
                window=args.window,
                overlap=args.overlap,
                job=f'{key} {path.stat().st_mtime_ns} {args.memory}',
                preview=not args.no_vis,
                scale=scale,
            )
        except KeyboardInterrupt:
            where = 'where it stopped' if args.whole else f'with {path}'
            raise KeyboardInterrupt(f'The same command continues {where}.') from None
        print(f'labels: {out}')
    return 0
