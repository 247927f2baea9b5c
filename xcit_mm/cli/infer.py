"""Run a detector or a segmentor on images and videos."""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config

from ..errors import UserError
from ..inference import (
    UNFINISHED_FILE,
    build_inferencer,
    find_sources,
    infer,
    is_video,
    left_out,
    result_names,
    results_path,
)
from ..inference.inputs import Source
from .common import (
    BUILD_ERRORS,
    check_checkpoint,
    check_device,
    command,
    explaining_config,
    load_config,
    task_of,
)


def job_of(cfg: Config, args: argparse.Namespace, sources: Sequence[Source]) -> str:
    """A hash of everything that affects the results: only the same command continues."""
    weights = Path(args.checkpoint).expanduser()
    saved = weights.stat().st_mtime_ns if weights.is_file() else None
    settings = [args.checkpoint, saved, args.no_vis, args.score_thr, args.allow_partial]
    job = [cfg.to_dict(), settings, [str(source) for source in sources]]
    return hashlib.sha256(json.dumps(job, default=str).encode()).hexdigest()


def check_output(results: Path, sources: Sequence[Source], args: argparse.Namespace) -> None:
    """Raise if there are finished results; delete unfinished ones if the user wants to start over.

    Args:
        results (Path): Where predictions go.
        sources (Sequence[Source]): The inputs.
        args (Namespace): The arguments.
    """
    videos = [source for source in sources if is_video(source)]
    if videos and args.no_vis:
        raise UserError(
            f'--no-vis leaves nothing to write for {videos[0]}: the result of a video is a video '
            'with the predictions drawn in.'
        )
    out_dir, names = results.parent, result_names(sources)
    outputs = [results, *(out_dir / 'vis' / f'{names[video]}.mp4' for video in videos)]
    existing = [path for path in outputs if path.exists()]
    unfinished = out_dir / UNFINISHED_FILE
    if args.force:
        unfinished.unlink(missing_ok=True)
    elif existing and not unfinished.exists():
        raise UserError(
            f'{existing[0]} already exists; --force overwrites it, --out-dir writes elsewhere.'
        )
    out_dir.mkdir(parents=True, exist_ok=True)


@command('infer')
def main(args: argparse.Namespace) -> int:
    sources = find_sources(args.inputs)
    cfg = load_config(args.config, args.cfg_options)
    task = task_of(cfg)
    check_checkpoint(args.checkpoint)
    check_device(args.device)
    out_dir = Path(args.out_dir)
    results = results_path(task, out_dir)
    check_output(results, sources, args)
    for path in left_out(args.inputs):
        print(f'left out, a file type that is not read from folders: {path}')
    with explaining_config(args.config, BUILD_ERRORS):
        inferencer = build_inferencer(cfg, task, args.checkpoint, args.device, args.allow_partial)
    score_thr = None if args.no_vis else args.score_thr
    skipped = infer(inferencer, task, sources, out_dir, score_thr, job_of(cfg, args, sources))
    for source, reason in skipped.items():
        print(f'skipped, {reason}: {source}')
    images = [source for source in sources if not is_video(source)]
    what = 'images' if len(images) == len(sources) else 'inputs'
    print(f'{len(sources) - len(skipped)} of {len(sources)} {what}')
    if images:
        print(f'predictions: {results}')
    if not args.no_vis:
        print(f'pictures: {out_dir / "vis"}')
    return 1 if skipped else 0
