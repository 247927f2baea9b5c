"""Parameters and operations of the network, counted the way the paper counts them."""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from xcit_mm_runtime.progress import track

from .models import VARIANTS, XCiTClassifier
from .models.variants import PATCH_SIZES
from .paper import PAPER_HEADS, paper_rows, paper_tables

COUNTING_RULE = (
    'Parameters in millions. GFLOPs of the classifier on one image: a multiply-add counts as one; '
    'LayerNorm counts five and BatchNorm two operations per element; attention as the paper writes '
    'it, with queries, keys and values of all tokens.'
)


def count_parameters(model: nn.Module) -> int:
    """Count a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def classifier_parameters(arch: str | dict[str, Any], patch_size: int) -> int:
    """Count the parameters of the ImageNet classifier."""
    with torch.device('meta'):
        return count_parameters(XCiTClassifier(arch, patch_size))


def classifier_flops(arch: str | dict[str, Any], patch_size: int, resolution: int) -> int:
    """Count the operations of the ImageNet classifier by :data:`COUNTING_RULE`.

    Nothing is computed: the model runs on meta tensors.

    Args:
        arch (str or dict): As in :class:`XCiT`.
        patch_size (int): 8 or 16.
        resolution (int): Height and width of the image.
    """
    with torch.device('meta'):
        model = XCiTClassifier(arch, patch_size, fast=False).eval()
        image = torch.empty(1, 3, resolution, resolution)
    operations_per_element = {nn.LayerNorm: 5, nn.BatchNorm2d: 2}
    extra = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal extra
        extra += operations_per_element[type(module)] * output.numel()

    for module in model.modules():
        if type(module) in operations_per_element:
            module.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops() // 2 + extra


def classifier_table() -> list[dict[str, Any]]:
    """Compare parameters and GFLOPs of the 14 classifiers with the paper's, a row per table cell.

    Returns:
        list[dict]: Rows with ``model``, ``resolution``, ``params_M``, ``paper_params_M``,
        ``gflops`` and ``paper_gflops``.
    """
    rows = []
    models = [(arch, patch_size) for arch in VARIANTS for patch_size in reversed(PATCH_SIZES)]
    for arch, patch_size in track(models, 'counting', len(models)):
        paper = paper_tables()['variants'][arch.upper()]
        parameters = classifier_parameters(arch, patch_size)
        for setting, gflops in paper['gflops'].items():
            resolution, _, patch = setting.partition('/')
            if int(patch) != patch_size:
                continue
            flops = classifier_flops(arch, patch_size, int(resolution))
            rows.append(
                {
                    'model': f'XCiT-{arch.upper()}/{patch_size}',
                    'resolution': int(resolution),
                    'params_M': parameters / 1e6,
                    'paper_params_M': paper['params_M'],
                    'gflops': flops / 1e9,
                    'paper_gflops': gflops,
                }
            )
    return rows


HEADS_RULE = (
    'Millions, truncated to 0.1. COCO: the whole detector. ADE20k: the whole segmentor with its '
    'auxiliary head, without the transposed convolutions that rescale the features, and the '
    'BatchNorm between two of them.'
)


def config_parameters(config: str, with_pyramid: bool = True) -> int:
    """Count the parameters of the model of one of our configs.

    Args:
        config (str): Its path below ``configs/``.
        with_pyramid (bool): Whether the layers that rescale the features count.
    """
    total, of_pyramid = _parameters_of_model_and_pyramid(config)
    return total if with_pyramid else total - of_pyramid


@functools.cache
def _parameters_of_model_and_pyramid(config: str) -> tuple[int, int]:
    from mmengine.hub import get_config
    from mmengine.registry import MODELS, init_default_scope

    cfg = get_config(f'xcit_mm::{config}')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # mmseg warns about itself
        model = MODELS.build(cfg.model)
    return count_parameters(model), count_parameters(model.backbone.pyramid)


def heads_table() -> list[dict[str, Any]]:
    """Compare the parameters of the paper's detectors and segmentors, ours next to the paper's."""
    rows = []
    cells = [(head, *cell) for head in PAPER_HEADS for cell in head.configs().items()]
    for head, size, config in track(cells, 'counting', len(cells)):
        ours = config_parameters(config, head.with_pyramid) // 100_000 / 10
        paper = paper_rows(head.table)[size][head.params]
        rows.append(
            {
                'head': f'{head.dataset}, {head.name}',
                'model': f'XCiT-{size}',
                'params_M': ours,
                'paper_params_M': paper,
                'agree': 'yes' if ours == paper else 'NO',
            }
        )
    return rows
