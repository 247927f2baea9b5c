"""Query and key magnitude on objects against the background, over a dataset."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from rich.progress import track

from dev.margin import CocoObjects, object_margin, untrained
from xcit_mm.configs import innermost_datasets
from xcit_mm.datasets.present import check_datasets
from xcit_mm.errors import UserError
from xcit_mm.tables import format_table
from xcit_mm.visualization.load import Subject
from xcit_mm_cli.arguments import positive
from xcit_mm_cli.common import explain_errors, load_config
from xcit_mm_cli.visualize import load

NAMES = ('queries', 'keys')


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.object_margin',
        description='Measure how well query and key magnitude separates objects from the '
        'background, on the validation set of a config in COCO’s layout. AUC is the probability '
        'that a token on an object has a larger magnitude than one on the background: 0.5 means no '
        'separation, and below 0.5 the background has the larger magnitude. The ratio is that of '
        'the mean magnitudes. Both are averaged over the images.',
    )
    parser.add_argument('config', help='a config file of a detector')
    parser.add_argument('checkpoint', help='a path, a web address, or a short name (xcit://...)')
    parser.add_argument(
        '--images', type=positive, metavar='N', help='the first N only (default: all)'
    )
    parser.add_argument('--device', help='cpu, cuda:0, ... (default: CUDA if there is one)')
    parser.add_argument(
        '--at-least',
        type=float,
        metavar='AUC',
        help='exit status 1 if no layer reaches this AUC, or this 1 - AUC where the background has '
        'the larger magnitude',
    )
    return parser.parse_args(argv)


def coco_objects(cfg: Config, loader: str, limit: int | None = None) -> CocoObjects:
    """The dataset of a detector's config.

    Args:
        cfg (Config): The config; the built-in dataset is drawn if it is missing.
        loader (str): ``train_dataloader`` or ``val_dataloader``.
        limit (int, optional): Number of images. Defaults to None, all.
    """
    check_datasets(cfg, (loader,))
    dataset = next(innermost_datasets(cfg[loader]))
    root = Path(dataset.get('data_root') or '')
    if not str(dataset.get('ann_file')).endswith('.json'):
        raise UserError(f'The dataset of {loader} in the config is not in COCO’s layout.')
    return CocoObjects(root / dataset.data_prefix.img, root / dataset.ann_file, limit)


def margin_rows(subject: Subject, samples: CocoObjects) -> list[dict[str, Any]]:
    """One row per layer: the model, and the same network with random weights."""
    trained, random = (
        object_margin(backbone, track(samples, description=what), subject.preprocess)
        for what, backbone in (
            ('trained', subject.backbone),
            ('random weights', untrained(subject.backbone)),
        )
    )
    columns = {'AUC': trained.auc, 'ratio': trained.ratio, 'AUC untrained': random.auc}
    rows: list[dict[str, Any]] = []
    for layer in range(len(trained.auc)):
        rows.append({'layer': layer + 1})
        for i, name in enumerate(NAMES):
            for what, values in columns.items():
                rows[-1][f'{name}: {what}'] = round(float(values[layer, i]), 3)
    return rows


def best(rows: list[dict[str, Any]]) -> tuple[float, str]:
    """The best separation of objects from background, AUC or 1 - AUC, and a sentence about it."""
    pairs = ((name, row) for name in NAMES for row in rows)
    name, row = max(pairs, key=lambda pair: abs(pair[1][f'{pair[0]}: AUC'] - 0.5))
    value = row[f'{name}: AUC']
    return max(value, 1 - value), (
        f'Largest margin: {name} of layer {row["layer"]}, AUC {value:.3f}, '
        f'{row[f"{name}: ratio"]:.2f} times the magnitude of the background.'
    )


def main(argv: Sequence[str] | None = None) -> int:
    return explain_errors(print_margins, parse_args(argv))


def print_margins(args: argparse.Namespace) -> int:
    cfg = load_config(args.config)
    subject = load(args.checkpoint, cfg, args.device)
    samples = coco_objects(cfg, 'val_dataloader', args.images)
    try:
        rows = margin_rows(subject, samples)
    except ValueError as error:
        raise UserError(str(error)) from None
    print(format_table(rows))
    value, sentence = best(rows)
    print(f'{sentence} {len(samples)} images.')
    return int(args.at_least is not None and value < args.at_least)


if __name__ == '__main__':
    sys.exit(main())
