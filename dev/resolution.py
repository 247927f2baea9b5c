"""``python -m dev.resolution``: top-1 of classifiers at several test resolutions.

As in the paper's figure of test resolutions. By default, the authors' XCiT-S12 and timm's DeiT-S
and ResNet-50, all trained at 224, on ImageNet. Writes a table, a plot and the numbers.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from dev.pages import write_numbers
from xcit_mm.compat import revert_sync_bn
from xcit_mm.tables import format_table
from xcit_mm.weights import read_weights, unwrap
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.progress import track

SIZES = (128, 160, 192, 224, 256, 288, 320, 384, 448)


class Classifier(NamedTuple):
    """A trained classifier.

    Args:
        label (str): Its name in the table.
        config (str): Path of its config.
        checkpoint (str): Its weights: a path, a web address, ``xcit://...`` or ``timm://...``.
    """

    label: str
    config: str
    checkpoint: str


PUBLISHED = (
    Classifier('XCiT-S12/16', 'configs/classification/xcit_s12_16_in1k.py', 'xcit://s12/16/224'),
    Classifier('XCiT-S12/8', 'configs/classification/xcit_s12_8_in1k.py', 'xcit://s12/8/224'),
    Classifier('DeiT-S', 'dev/configs/deit_s_16_in1k.py', 'timm://deit_small_patch16_224'),
    Classifier('ResNet-50', 'dev/configs/resnet50_in1k.py', 'timm://resnet50'),
)


def top1_by_size(
    label: str, cfg: Config, checkpoint: str, sizes: Iterable[int]
) -> dict[int, float]:
    """Test a classifier at several sizes; return its top-1 in percent for each.

    Args:
        label (str): Its name in the progress bar.
        cfg (Config): Its config, whose test pipeline starts with a ``TimmTransform``.
        checkpoint (str): Its weights.
        sizes (Iterable[int]): Heights and widths of the images.
    """
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    model = MODELS.build(cfg.model)
    model.load_state_dict(unwrap(read_weights(checkpoint)))
    model.to('cuda' if torch.cuda.is_available() else 'cpu').eval()
    found = {}
    for size in sizes:
        cfg.test_dataloader.dataset.pipeline[0].input_size = size
        loader = Runner.build_dataloader(cfg.test_dataloader)
        evaluator = Evaluator(dict(type='TopKAccuracy', names=['top1']))
        for batch in track(loader, f'{label} at {size}', len(loader)):
            with torch.no_grad():
                evaluator.process(model.test_step(batch), batch)
        found[size] = evaluator.evaluate(len(loader.dataset))['accuracy/top1']
    return found


def resolution_table(curves: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    """Return a row per model and a column per size.

    Args:
        curves (dict): Top-1 by size, by label.
    """
    return [
        {'model': label, **{str(size): f'{value:.1f}' for size, value in curve.items()}}
        for label, curve in curves.items()
    ]


def plot_resolutions(
    curves: dict[str, dict[int, float]], trained_at: int, path: Path, title: str = ''
) -> None:
    """Draw top-1 against the size of test images; dashed where the label says multi-scale.

    Args:
        curves (dict): Top-1 by size, by label.
        trained_at (int): The size of training images, drawn as a line.
        path (Path): The picture.
        title (str): Its title. Defaults to none.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout='constrained')
    axes = figure.subplots()
    axes.axvline(trained_at, color='gray', linewidth=1, linestyle=':')
    colors: dict[str, str] = {}
    for label, curve in curves.items():
        color = colors.setdefault(label.partition(',')[0], f'C{len(colors)}')
        style = '--' if 'multi-scale' in label else '-'
        axes.plot(list(curve), list(curve.values()), style, color=color, marker='o', label=label)
    axes.set_xlabel(f'height and width of the test images (dotted: trained at {trained_at})')
    axes.set_ylabel('top-1, %')
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.resolution',
        description='Test classifiers at several resolutions; write a table, a plot and the '
        'numbers. By default, XCiT-S12, DeiT-S and ResNet-50 with published weights, on ImageNet. '
        'Positions of DeiT-S are interpolated.',
    )
    parser.add_argument(
        '--model',
        action='append',
        nargs=3,
        metavar=('LABEL', 'CONFIG', 'CHECKPOINT'),
        help='a classifier to test in place of the default; may be repeated',
    )
    parser.add_argument('--sizes', type=int, nargs='+', default=SIZES, help='test resolutions')
    parser.add_argument('--data-root', help='folder with val/CLASS/; default: that of the config')
    parser.add_argument(
        '--trained-at', type=int, default=224, help='marked in the plot (default: 224)'
    )
    parser.add_argument(
        '--out-dir', type=Path, default=Path('work_dirs/resolution'), help='folder for the results'
    )
    return explain_errors(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> int:
    curves = {}
    models = [Classifier(*model) for model in args.model or PUBLISHED]
    for model in models:
        cfg = Config.fromfile(model.config)
        if args.data_root:
            cfg.test_dataloader.dataset.data_root = args.data_root
        curves[model.label] = top1_by_size(model.label, cfg, model.checkpoint, args.sizes)
    print(format_table(resolution_table(curves)))
    write_numbers(args.out_dir / 'resolution.json', curves)
    picture = args.out_dir / 'resolution.png'
    plot_resolutions(curves, args.trained_at, picture)
    print(f'Plot: {picture}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
