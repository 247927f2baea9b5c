"""``python -m dev.appendix``: the studies of the paper's appendix, at the scale of two cores.

Trains small networks on the objects of the built-in shapes and tests them: XCiT, DeiT and ResNet
at several resolutions, trained at one or at many; DeiT with other patch sizes; and DeiT with other
attention. Writes docs/studies/appendix.md, where the paper's figures stand beside them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from dev.deit import ATTENTIONS, build_timm_classifier, count_flops
from dev.pages import write_between_marks, write_numbers
from dev.resolution import plot_resolutions, resolution_table, top1_by_size
from xcit_mm.models import XCiTClassifier
from xcit_mm.tables import format_table
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.errors import UserError

DOCS = Path(__file__).parents[1] / 'docs' / 'studies'
PAGE, NUMBERS = DOCS / 'appendix.md', DOCS / 'appendix.json'
PLOT = DOCS / 'images' / 'appendix_resolution.png'
OUT = Path('work_dirs/appendix')
SHAPES = 'configs/classification/xcit_n12_8_shapes.py'
EPOCHS, BATCH, RATE = 3, 32, 2e-3
SIZE, PATCH = 48, 8
TEST_SIZES = (24, 32, 40, 48, 64, 80, 96)
TRAIN_SIZES = (32, 40, 48, 56, 64)

XCIT = dict(
    type='XCiTClassifier',
    arch=dict(embed_dims=64, depth=4, num_heads=4),
    patch_size=PATCH,
    norm_cfg=dict(type='BN'),
)
DEIT = dict(
    type='TimmClassifier',
    name='deit_small_patch16_224',
    attention='full',
    img_size=SIZE,
    patch_size=PATCH,
    embed_dim=64,
    depth=4,
    num_heads=4,
    dynamic_img_size=True,
)
RESNET = dict(type='TimmClassifier', name='resnet10t', channels=(32, 64, 128, 256), stem_width=16)
NETWORKS = {'XCiT': XCIT, 'DeiT': DEIT, 'ResNet': RESNET}
# Size of the image and of a patch: as many tokens at every size, or patches of the same size.
SAME_TOKENS = ((30, 5), (48, 8), (72, 12))
SAME_PATCHES = ((32, 8), (48, 8), (72, 8))
# The paper's top-1 on ImageNet.
PAPER_ATTENTION = dict(
    full=79.9, sra_pool=73.5, sra_conv=74.0, linformer=75.7, efficient=76.3, axial=78.4, xcit=82.0
)
# The networks on the shapes with these names, where they have others.
ON_SHAPES = dict(full='DeiT', xcit='XCiT')
LABELS = dict(
    full='DeiT-S, its own',
    sra_pool='SRA, average pool',
    sra_conv='SRA, convolution',
    linformer='Linformer, k = √n',
    efficient='efficient attention',
    axial='axial attention',
    xcit='XCiT-S12/16',
)


def networks() -> dict[str, dict[str, Any]]:
    """Return what is trained, by name: the backbone, the size of images and, if many, the sizes."""
    found: dict[str, dict[str, Any]] = {}
    for label, backbone in NETWORKS.items():
        found[label] = dict(backbone=backbone, size=SIZE)
        found[f'{label}, multi-scale'] = dict(backbone=backbone, size=SIZE, sizes=TRAIN_SIZES)
    for size, patch in (*SAME_TOKENS, *SAME_PATCHES):
        if (size, patch) != (SIZE, PATCH):
            backbone = dict(DEIT, img_size=size, patch_size=patch)
            found[f'{size}/{patch}'] = dict(backbone=backbone, size=size)
    for attention in ATTENTIONS:
        if attention != 'full':
            found[attention] = dict(backbone=dict(DEIT, attention=attention), size=SIZE)
    return found


def small_config(backbone: dict[str, Any], size: int, sizes: Sequence[int] = ()) -> Config:
    """Return the config of a training on the shapes.

    Args:
        backbone (dict): Config of the network.
        size (int): Size of test images and, without ``sizes``, of training images.
        sizes (Sequence[int]): Sizes of multi-scale training. Defaults to none.
    """
    cfg = Config.fromfile(SHAPES)
    cfg.custom_imports.imports = ['xcit_mm', 'dev.deit']
    cfg.model.backbone = dict(backbone, num_classes=5)
    if sizes:
        cfg.model.data_preprocessor = dict(type='MultiScalePreprocessor', sizes=list(sizes))
    cfg.train_dataloader.dataset.pipeline[0].input_size = max(sizes, default=size)
    for loader in (cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.pipeline[0].input_size = size
    cfg.train_dataloader.batch_size = BATCH
    cfg.optim_wrapper.optimizer.lr = RATE
    cfg.train_cfg.max_epochs = cfg.param_scheduler[1].end = EPOCHS
    return cfg


def result_file(name: str, seed: int) -> Path:
    """Return where the result of a network is or will be."""
    return OUT / f'{name.replace("/", "_").replace(", ", "_")}_{seed}' / 'result.json'


def train_and_test(name: str, seed: int) -> None:
    """Train and test a network.

    Args:
        name (str): One of :func:`networks`.
        seed (int): Seed of the weights and of the order of the images.
    """
    file = result_file(name, seed)
    folder = file.parent
    network = networks()[name]
    cfg = small_config(**network)
    cfg.randomness.seed = seed
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / 'config.py'
    cfg.dump(config)
    command = [sys.executable, '-m', 'xcit_mm_cli', 'train', str(config)]
    start = time.monotonic()
    done = subprocess.run([*command, '--work-dir', str(folder), '--no-validate', '--resume'])
    if done.returncode:
        raise UserError(f'Training {name} failed: see {folder}.')
    minutes = (time.monotonic() - start) / 60
    sizes = TEST_SIZES if name.partition(',')[0] in NETWORKS else (network['size'],)
    checkpoint = str(folder / f'epoch_{EPOCHS}.pth')
    curve = top1_by_size(name, Config.fromfile(config), checkpoint, sizes)
    write_numbers(file, dict(name=name, seed=seed, minutes=round(minutes, 1), top1=curve))


def collect(results: list[dict[str, Any]]) -> dict[str, dict[int, list[float]]]:
    """Return the top-1 of each seed, by network and size of the test images."""
    found: dict[str, dict[int, list[float]]] = {}
    for result in results:
        for size, top1 in result['top1'].items():
            found.setdefault(result['name'], {}).setdefault(int(size), []).append(top1)
    return found


def mean_curves(results: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Return the curves of the plot: the mean over the seeds."""
    return {
        name: {size: statistics.mean(values) for size, values in curve.items()}
        for name, curve in collect(results).items()
        if name.partition(',')[0] in NETWORKS
    }


def tables(data: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by their marks, given the numbers."""
    found = collect(data['results'])

    def shown(name: str, size: int = SIZE) -> str:
        values = found.get(name, {}).get(size, [])
        if not values:
            return '-'
        each = f' ({", ".join(f"{value:.1f}" for value in values)})' if len(values) > 1 else ''
        return f'{statistics.mean(values):.1f}{each}'

    def patches(pairs: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        return [
            {
                'image': size,
                'patch': patch,
                'tokens': (size // patch) ** 2,
                'top-1 on the shapes': shown(
                    'DeiT' if (size, patch) == (SIZE, PATCH) else f'{size}/{patch}', size
                ),
            }
            for size, patch in pairs
        ]

    attention = [
        {
            'attention': LABELS[name],
            'GFLOPs at 224': f'{data["flops"][name]["224"] / 1e9:.2f}',
            'at 512': f'{data["flops"][name]["512"] / 1e9:.1f}',
            'at 1024': f'{data["flops"][name]["1024"] / 1e9:.0f}',
            'paper, ImageNet top-1': top1,
            'top-1 on the shapes': shown(ON_SHAPES.get(name, name)),
        }
        for name, top1 in PAPER_ATTENTION.items()
    ]
    rows = dict(
        resolution=resolution_table(mean_curves(data['results'])),
        tokens=patches(SAME_TOKENS),
        patches=patches(SAME_PATCHES),
        attention=attention,
    )
    return {mark: format_table(part, 'markdown') for mark, part in rows.items()}


def attention_flops() -> dict[str, dict[str, int]]:
    """Count the multiply-adds of DeiT-S with each attention and of XCiT-S12, by image size."""
    found: dict[str, dict[str, int]] = {}
    for name in PAPER_ATTENTION:
        for size in (224, 512, 1024):
            with torch.device('meta'):
                model = (
                    build_timm_classifier('deit_small_patch16_224', name, img_size=size)
                    if name in ATTENTIONS
                    else XCiTClassifier('s12', 16, fast=False)
                )
            found.setdefault(name, {})[str(size)] = count_flops(model, 1, 3, size, size)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.appendix',
        description='Train small networks on the built-in shapes and test them, as in the studies '
        "of the paper's appendix; write docs/studies/appendix.md. Networks that are done are left "
        f'out. Results of single runs: {OUT}.',
    )
    parser.add_argument(
        'names', nargs='*', metavar='NAME', help='networks to train now, without a page'
    )
    parser.add_argument('--list', action='store_true', help='list the networks and stop')
    parser.add_argument(
        '--page', action='store_true', help='write the page from what is done, without training'
    )
    parser.add_argument(
        '--seeds', type=int, nargs='+', default=[0], help='seeds of the runs (default: 0)'
    )
    return explain_errors(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> int:
    if args.list:
        print('\n'.join(networks()))
        return 0
    unknown = set(args.names) - set(networks())
    if unknown:
        raise UserError(f'{min(unknown)} is not one of {"; ".join(networks())}.')
    results = []
    for name in args.names or networks():
        for seed in args.seeds:
            file = result_file(name, seed)
            if not file.exists() and not args.page:
                train_and_test(name, seed)
            if file.exists():
                results.append(json.loads(file.read_text(encoding='utf-8')))
                print(f'{name}, seed {seed}: {results[-1]["top1"]}', flush=True)
    if not args.names:
        write_page(results)
    return 0


def write_page(results: list[dict[str, Any]]) -> None:
    """Write numbers, plot and tables."""
    data = dict(results=results, flops=attention_flops())
    write_numbers(NUMBERS, data)
    plot_resolutions(mean_curves(results), SIZE, PLOT, 'Objects of the shapes')
    print(f'Plot: {PLOT}')
    write_between_marks(PAGE, tables(data))


if __name__ == '__main__':
    sys.exit(main())
