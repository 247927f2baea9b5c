"""Run a detector or a segmentor on images and videos."""

import argparse
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import xcit_mm_runtime
from xcit_mm.configs import bit_depth, category_ids
from xcit_mm.errors import BUILD_ERRORS, UserError
from xcit_mm.inference import (
    TASKS,
    AnnotationFile,
    infer,
    is_unfinished,
    load_model,
    load_predictor,
)
from xcit_mm.inference.ids import own_ids
from xcit_mm.inference.processes import device_of, this_process
from xcit_mm.inference.shards import EVERYTHING, Shard, delete_shards
from xcit_mm_runtime.inputs import (
    MediaSource,
    ResultNames,
    find_sources,
    is_video,
    to_network_depth,
    unsupported_files,
)
from xcit_mm_runtime.predict import Predictor, results_path

from .arguments import SCORE_THR
from .common import (
    check_checkpoint,
    check_device,
    command,
    explaining_config,
    load_config,
    printable,
    task_of,
)
from .merge import report


def key_of(
    settings: dict[str, Any], args: argparse.Namespace, sources: Sequence[MediaSource]
) -> str:
    """A hash of everything that affects the results: only the same command continues.

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


def check_output(results: Path, sources: Sequence[MediaSource], args: argparse.Namespace) -> None:
    """Raise if there are finished results; delete unfinished ones if the user wants to start over.

    Args:
        results (Path): Where predictions go.
        sources (Sequence[MediaSource]): The inputs.
        args (Namespace): The arguments.
    """
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
        raise UserError(
            f'{existing[0]} already exists; --force overwrites it, --out-dir writes elsewhere.'
        )
    out_dir.mkdir(parents=True, exist_ok=True)


def check_shared(args: argparse.Namespace, sources: Sequence[MediaSource]) -> None:
    """Raise for what several processes cannot do together.

    Args:
        args (Namespace): The arguments.
        sources (Sequence[MediaSource]): The inputs.
    """
    if args.force:
        raise UserError(
            'Of several processes, one with --force would delete what the others have written: '
            f'delete {args.out_dir} before you start them, or write elsewhere with --out-dir.'
        )
    cameras = [source for source in sources if isinstance(source, int)]
    if cameras:
        raise UserError(f'Camera {cameras[0]} can only be recorded by one process.')


def open_annotations(args: argparse.Namespace, task: str) -> AnnotationFile | None:
    """The annotation file that gives a detector's ids, if there is one.

    Args:
        args (Namespace): The arguments.
        task (str): ``detection`` or ``segmentation``, for which options of detectors are refused.
    """
    if task != 'detection':
        if args.ann_file:
            raise UserError(
                '--ann-file gives the ids of detections; a segmentor writes label PNGs.'
            )
        if args.score_thr != SCORE_THR:
            raise UserError('--score-thr selects the boxes to draw; a segmentor has none.')
    return AnnotationFile(args.ann_file) if args.ann_file else None


class Chosen(NamedTuple):
    """The model that the arguments name, before it is built.

    Args:
        task (str): ``detection`` or ``segmentation``.
        settings (dict): What identifies it, next to its file.
        build (callable): Returns it, ready to predict.
    """

    task: str
    settings: dict[str, Any]
    build: Callable[[], Predictor]


def choose(args: argparse.Namespace) -> Chosen:
    """The model of ``--model``, or that of ``--config`` and ``--checkpoint``."""
    if args.model:
        # As for PyTorch; torchrun sets it to 1, so that processes do not share processors.
        threads = os.environ.get('OMP_NUM_THREADS', '')
        model = xcit_mm_runtime.load(args.model, int(threads) if threads.isdecimal() else 0)
        model.check_predicts()
        return Chosen(model.task, model.metadata.to_dict(), lambda: model)
    cfg = load_config(args.config, args.cfg_options)
    scope = task_of(cfg)
    if scope not in TASKS:
        raise UserError('infer is for detectors and segmentors; this config is for pre-training.')
    check_checkpoint(args.checkpoint)
    check_device(args.device)

    def build() -> Predictor:
        with explaining_config(args.config, BUILD_ERRORS):
            return load_predictor(cfg, args.checkpoint, args.device, args.allow_partial)

    return Chosen(TASKS[scope], cfg.to_dict(), build)


def infer_large(args: argparse.Namespace) -> int:
    """Run on large images, one after another."""
    from xcit_mm.large.run import (
        UNFINISHED,
        check_names,
        detect_large,
        find_large_images,
        segment_large,
    )
    from xcit_mm.large.units import parse_bytes

    try:
        memory = None if args.memory is None else parse_bytes(args.memory)
    except ValueError as error:
        raise UserError(f'--memory {error}.') from None
    paths = find_large_images(args.inputs)
    check_names(paths)
    cfg = load_config(args.config, args.cfg_options)
    task, out_dir = task_of(cfg), Path(args.out_dir)
    if task == 'mmdet' and args.window is None:
        raise UserError(
            '--whole is for segmentation: boxes cannot be put together from parts of a feature map '
            'without all of it. For detection, use --window 2048 --overlap 256.'
        )
    if args.window is not None and not 0 <= args.overlap < args.window:
        raise UserError(f'--overlap must be from 0 to {args.window - 1}, less than --window.')
    check_checkpoint(args.checkpoint)
    check_device(args.device)
    if task not in TASKS:
        raise UserError('infer is for detectors and segmentors; this config is for pre-training.')
    annotations = open_annotations(args, TASKS[task])
    labels = [out_dir / 'labels' / f'{path.stem}.tif' for path in paths]
    outputs = [results_path(TASKS[task], out_dir)] if task == 'mmdet' else labels
    if args.force:
        shutil.rmtree(out_dir / UNFINISHED, ignore_errors=True)
    elif all(path.exists() for path in outputs) and not (out_dir / UNFINISHED).exists():
        raise UserError(
            f'{outputs[0]} already exists; --force overwrites it, --out-dir writes elsewhere.'
        )
    with explaining_config(args.config, BUILD_ERRORS):
        model = load_model(cfg, args.checkpoint, args.device, args.allow_partial)
    scale = functools.partial(
        to_network_depth, channels=model.backbone.in_channels, bit_depth=bit_depth(cfg) or 16
    )
    if task == 'mmdet':
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
        if out.exists() and not args.force and not (out_dir / UNFINISHED / path.stem).exists():
            continue  # done before an interruption
        key = key_of(cfg.to_dict(), args, [str(path)])
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


@command('infer')
def main(args: argparse.Namespace) -> int:
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
    chosen = choose(args)
    out_dir = Path(args.out_dir)
    results = results_path(chosen.task, out_dir)
    annotations = open_annotations(args, chosen.task)
    check_output(results, sources, args)
    if process.shard.index == 0:
        for path in unsupported_files(args.inputs):
            print(f'left out, a file type that is not read from folders: {printable(path)}')
    key = key_of(chosen.settings, args, sources)
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
    report(job, out_dir, skipped, job.inputs - len(skipped))
    if not args.no_vis:
        print(f'pictures: {out_dir / "vis"}')
    return 1 if skipped else 0
