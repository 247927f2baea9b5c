"""``xcit-mm test``: test a detector, a segmentor or a classifier."""

import argparse
import json
from pathlib import Path

from .options import (
    CHECKPOINT_HELP,
    add_allow_partial,
    add_config,
    add_flag,
    add_run_options,
    fraction,
    positive,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Test a detector, a segmentor or a classifier. Metrics of published weights (xcit://...) '
        "are printed next to the paper's. For several processes: tools/dist_test.sh."
    )
    add_config(parser)
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument(
        '--eval',
        nargs='+',
        metavar='METRIC',
        help="metrics to compute instead of the config's: bbox segm proposal proposal_fast for "
        'detection, mIoU mDice mFscore for segmentation, top1 top5 for classification',
    )
    add_run_options(parser)
    parser.add_argument(
        '--out',
        help='write predictions: a folder of PNGs for segmentation, a .pkl file for all others',
    )
    parser.add_argument(
        '--json', metavar='FILE', help='write the metrics, also those of each class, to a JSON file'
    )
    parser.add_argument(
        '--report',
        metavar='FILE.html',
        help='write a page. Detection: precision-recall curves, AP of each class and size, a '
        'confusion matrix, the worst false positives and misses as pictures. Segmentation: IoU of '
        'each class, a confusion matrix',
    )
    parser.add_argument(
        '--score-thr',
        type=fraction,
        default=0.3,
        help='lowest score of detections in the confusion matrix and the pictures of --report; AP '
        'counts all (default: %(default)s)',
    )
    add_flag(parser, '--force', 'overwrite --out, --json and --report')
    add_flag(parser, '--show', 'show predictions in a window')
    parser.add_argument(
        '--show-dir',
        help='write a picture of each image to this folder: ground truth on the left, prediction '
        'on the right',
    )
    parser.add_argument(
        '--wait-time', type=float, default=2, help='seconds between windows (default: 2)'
    )
    add_flag(parser, '--tta', 'test-time augmentation')
    parser.add_argument(
        '--window',
        type=positive,
        metavar='PIXELS',
        help="slide a window of this size over each image, instead of what the config's "
        'model.test_cfg says. The metrics are those of whole images',
    )
    parser.add_argument(
        '--overlap',
        type=int,
        metavar='PIXELS',
        help='what neighboring windows have in common (default: a quarter of --window)',
    )
    add_allow_partial(parser)


def find_conflict(args: argparse.Namespace) -> str | None:
    """Say what is wrong with a combination of arguments."""
    if args.overlap is None:
        return None
    if args.window is None:
        return '--overlap is what the windows of --window have in common: give both'
    if not 0 <= args.overlap < args.window:
        return f'--overlap must be from 0 to {args.window - 1}, less than --window'
    return None


def run(args: argparse.Namespace) -> int:
    from mmengine.dist import is_main_process

    from xcit_mm.datasets.present import check_datasets
    from xcit_mm.engine import testing
    from xcit_mm.engine.config import build_runner, load_config
    from xcit_mm.tables import format_table
    from xcit_mm_runtime.files import check_new, write_atomically

    from .common import check_checkpoint, check_output, prepare_run

    cfg = load_config(args.config, args.cfg_options)
    if args.eval:
        testing.set_metrics(cfg, args.eval)
    if args.out:
        check_new(args.out, args.force)
        testing.set_predictions(cfg, args.out)
    if args.show or args.show_dir:
        testing.set_pictures(cfg, out_dir=args.show_dir, show=args.show, wait_time=args.wait_time)
    if args.window:
        overlap = args.window // 4 if args.overlap is None else args.overlap
        testing.set_windows(cfg, args.window, overlap)
    if args.tta:
        testing.set_tta(cfg)
    check_output(args.json, args.force)
    check_output(args.report, args.force)
    check_checkpoint(args.checkpoint)
    check_datasets(cfg, ('test_dataloader',))
    cfg.load_from = args.checkpoint
    if not args.allow_partial:
        hooks = cfg.get('custom_hooks') or []
        cfg.custom_hooks = [*hooks, dict(type='CompleteWeightsHook')]
    prepare_run(cfg, args)
    runner = build_runner(cfg, args.config)
    if not args.verbose:
        testing.hide_tables(runner)
    if args.report:
        from xcit_mm.engine import report

        report.keep_details(runner)
    metrics = {name: testing.value_or_none(value) for name, value in runner.test().items()}
    if not is_main_process():
        return 0
    # The paper tests whole images, at one size, as they are.
    as_paper = not (args.tta or args.window)
    paper, source = testing.paper_results(args.checkpoint, metrics) if as_paper else ({}, '')
    print('\n' + format_table(testing.metric_rows(metrics, args.eval or [], paper)))
    if source:
        print(source)
    if limit := testing.describe_limit(runner):
        print(limit)
    classes = testing.class_rows(runner)
    if classes:
        table = format_table(classes)
        runner.logger.info('per class results:\n' + table)
        print('\n' + table)
    if args.json:
        of_classes = {f'{key}/{row["class"]}': row[key] for row in classes for key in list(row)[1:]}
        write_atomically(args.json, json.dumps(metrics | of_classes, indent=1) + '\n')
    if args.report:
        title = f'{Path(args.config).name}, {Path(args.checkpoint).name}'
        page = report.render_report(runner, title, metrics, args.score_thr)
        write_atomically(args.report, page)
    outputs = {'metrics': args.json, 'predictions': args.out, 'pictures': args.show_dir}
    outputs['report'] = args.report
    for what, path in outputs.items():
        if path:
            print(f'{what}: {path}')
    return 0
