"""How well query and key magnitude separates objects from the background, over a dataset."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, MODELS, init_default_scope

from xcit_mm.configs import innermost_datasets
from xcit_mm.datasets.present import check_datasets
from xcit_mm.models.trunk import XCiTTrunk
from xcit_mm.visualization.images import Preprocess
from xcit_mm.visualization.magnitude import QueryKeyMagnitude
from xcit_mm.visualization.observe import observe
from xcit_mm_runtime.progress import track

# A token is on an object if objects cover at least the first fraction of its square, and on the
# background if they cover at most the second. Tokens in between, on an outline, count as neither.
OBJECT, BACKGROUND = 0.5, 0.0
NAMES = ('queries', 'keys')


class Sample(NamedTuple):
    """An image and its objects.

    Args:
        image (np.ndarray): RGB, uint8 (H, W, 3).
        mask (np.ndarray): The union of its objects, bool (H, W).
        classes (np.ndarray): Which classes it has, bool (classes,).
    """

    image: np.ndarray
    mask: np.ndarray
    classes: np.ndarray


def load_samples(cfg: Config, loader: str, limit: int | None = None) -> list[Sample]:
    """Load the images of a detector's dataset with the masks of their objects.

    Args:
        cfg (Config): The config; the built-in dataset is drawn if it is missing.
        loader (str): ``train_dataloader`` or ``val_dataloader``.
        limit (int, optional): Number of images. Defaults to None, all.
    """
    check_datasets(cfg, (loader,))
    init_default_scope('mmdet')
    settings = dict(next(innermost_datasets(cfg[loader])), test_mode=True, indices=limit)
    load = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
    dataset = DATASETS.build({**settings, 'pipeline': [dict(type='LoadImageFromFile'), load]})
    count = len(dataset.metainfo['classes'])
    samples = []
    for found in dataset:
        classes = np.bincount(found['gt_bboxes_labels'], minlength=count) > 0
        mask = found['gt_masks'].to_ndarray().any(0)
        samples.append(Sample(np.ascontiguousarray(found['img'][..., ::-1]), mask, classes))
    return samples


def object_margin(
    backbone: XCiTTrunk, samples: Sequence[Sample], preprocess: Preprocess, title: str = ''
) -> tuple[np.ndarray, np.ndarray]:
    """Compare tokens on objects with tokens on the background.

    It is done in each image, averaged over heads, and then averaged over the images.

    Args:
        backbone (XCiTTrunk): The network.
        samples (Sequence[Sample]): The images. Those with tokens on objects only, or on the
            background only, are left out.
        preprocess (callable): RGB image to tensor.
        title (str): What the progress bar says.

    Returns:
        tuple[np.ndarray, np.ndarray]: The probability that a token on an object has the larger
        magnitude (the area under the ROC curve; 0.5 means no separation), and the mean magnitude on
        objects over that on the background; (layers, 2) each, queries and keys.
    """
    aucs, ratios = [], []
    for sample in track(samples, title):
        picture = QueryKeyMagnitude(backbone)
        observe(backbone, preprocess(sample.image), [picture])
        maps = picture.result()
        cover = token_cover(sample.mask, maps.shape[2:], backbone.patch_size)
        objects, background = maps[..., cover >= OBJECT], maps[..., cover <= BACKGROUND]
        if objects.size and background.size:
            pairs = [auc(objects[i], background[i]) for i in np.ndindex(maps.shape[:2])]
            aucs.append(np.reshape(pairs, maps.shape[:2]))
            ratios.append(objects.mean(-1) / background.mean(-1))
    return np.mean(aucs, axis=0), np.mean(ratios, axis=0)


def token_cover(mask: np.ndarray, grid: tuple[int, ...], patch_size: int) -> np.ndarray:
    """Return the fraction of each token's square within the image that a mask covers."""
    shape = (grid[0], patch_size, grid[1], patch_size)
    padding = [(0, side * patch_size - have) for side, have in zip(grid, mask.shape, strict=True)]
    covered, all_of_it = (
        np.pad(pixels.astype(np.float32), padding).reshape(shape).sum((1, 3))
        for pixels in (mask, np.ones_like(mask))
    )
    return covered / all_of_it


def auc(larger: np.ndarray, smaller: np.ndarray) -> float:
    """Return how often a value of the first exceeds one of the second; ties count half."""
    ordered = np.sort(smaller)
    below = np.searchsorted(ordered, larger, 'left') + np.searchsorted(ordered, larger, 'right')
    return float(below.mean() / 2 / len(ordered))


def untrained(cfg: Config) -> XCiTTrunk:
    """Return the backbone of a config with its initial random weights."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel('WARNING')  # mmengine logs lines for each parameter that it initializes
    torch.manual_seed(0)
    backbone = MODELS.build({**cfg.model.backbone, 'init_cfg': None})
    backbone.init_weights()
    logger.setLevel(level)
    return backbone


def margin_rows(
    backbone: XCiTTrunk, cfg: Config, samples: Sequence[Sample], preprocess: Preprocess
) -> list[dict[str, Any]]:
    """Return one row per layer: the trained network, and the same one with random weights."""
    trained, ratio = object_margin(backbone, samples, preprocess, 'trained')
    random, _ = object_margin(untrained(cfg), samples, preprocess, 'random weights')
    columns = {'AUC': trained, 'ratio': ratio, 'AUC untrained': random}
    rows = []
    for layer in range(len(ratio)):
        values = {
            f'{name}: {what}': round(float(values[layer, i]), 3)
            for i, name in enumerate(NAMES)
            for what, values in columns.items()
        }
        rows.append({'layer': layer + 1, **values})
    return rows


def describe_largest(rows: Sequence[dict[str, Any]]) -> str:
    """Return a sentence about the best separation of objects from background, either way."""
    pairs = ((name, row) for name in NAMES for row in rows)
    name, row = max(pairs, key=lambda pair: abs(pair[1][f'{pair[0]}: AUC'] - 0.5))
    return (
        f'Largest margin: {name} of layer {row["layer"]}, AUC {row[f"{name}: AUC"]:.3f}, '
        f'{row[f"{name}: ratio"]:.2f} times the magnitude of the background.'
    )
