"""How well query and key magnitude separates objects from the background, over a dataset."""

import contextlib
import copy
import io
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from torch import nn

from xcit_mm.configs import innermost_datasets
from xcit_mm.datasets.present import check_datasets
from xcit_mm.models.layers import XCiTLayer
from xcit_mm.models.trunk import XCiTTrunk
from xcit_mm.visualization.images import Preprocess
from xcit_mm.visualization.load import Subject
from xcit_mm.visualization.magnitude import QueryKeyMagnitude
from xcit_mm.visualization.observe import observe
from xcit_mm_runtime.progress import track

# A token is on an object if objects cover at least the first fraction of its square, and on the
# background if they cover at most the second. Tokens in between, on an outline, count as neither.
OBJECT, BACKGROUND = 0.5, 0.0
NAMES = ('queries', 'keys')


class CocoObjects:
    """Images of a dataset in COCO's layout, RGB, each with the union of its objects.

    Args:
        cfg (Config): A detector's config; the built-in dataset is drawn if it is missing.
        loader (str): ``train_dataloader`` or ``val_dataloader``.
        limit (int, optional): Number of images. Defaults to None, all.
    """

    def __init__(self, cfg: Config, loader: str, limit: int | None = None) -> None:
        from pycocotools.coco import COCO

        check_datasets(cfg, (loader,))
        dataset = next(innermost_datasets(cfg[loader]))
        root = Path(dataset.get('data_root') or '')
        self.folder = root / dataset.data_prefix.img
        with contextlib.redirect_stdout(io.StringIO()):
            self.coco = COCO(str(root / dataset.ann_file))
        self.infos = self.coco.loadImgs(self.coco.getImgIds())[:limit]

    def __len__(self) -> int:
        return len(self.infos)

    def _annotations(self, info: dict[str, Any]) -> list[dict[str, Any]]:
        return self.coco.loadAnns(self.coco.getAnnIds(info['id']))

    def labels(self) -> list[list[float]]:
        """Return 1 for the classes that an image has and 0 for the others, for each image."""
        classes = self.coco.getCatIds()
        present = ({a['category_id'] for a in self._annotations(info)} for info in self.infos)
        return [[float(c in found) for c in classes] for found in present]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for info in self.infos:
            image = mmcv.imread(self.folder / info['file_name'], channel_order='rgb')
            mask = np.zeros(image.shape[:2], bool)
            for annotation in self._annotations(info):
                mask |= self.coco.annToMask(annotation).astype(bool)
            yield image, mask


class Margin(NamedTuple):
    """Tokens on objects against tokens on the background.

    Args:
        auc (np.ndarray): The probability that a token on an object has the larger magnitude (the
            area under the ROC curve; 0.5 means no separation), (layers, 2), queries and keys.
        ratio (np.ndarray): The mean magnitude on objects over that on the background, (layers, 2).
    """

    auc: np.ndarray
    ratio: np.ndarray


def object_margin(
    backbone: XCiTTrunk,
    samples: Iterable[tuple[np.ndarray, np.ndarray]],
    preprocess: Preprocess,
) -> Margin:
    """Measure the margin in each image, averaged over heads, and average over the images.

    Args:
        backbone (XCiTTrunk): The network.
        samples (Iterable): Images, RGB uint8 (H, W, 3), and masks of their objects, bool (H, W).
            Those with tokens on objects only, or on the background only, are left out.
        preprocess (callable): RGB image to tensor.
    """
    margins = []
    for image, mask in samples:
        picture = QueryKeyMagnitude(backbone)
        observe(backbone, preprocess(image), [picture])
        maps = picture.result()
        cover = token_cover(mask, maps.shape[2:], backbone.patch_size)
        objects, background = maps[..., cover >= OBJECT], maps[..., cover <= BACKGROUND]
        if objects.size and background.size:
            pairs = [auc(objects[i], background[i]) for i in np.ndindex(maps.shape[:2])]
            ratio = objects.mean(-1) / background.mean(-1)
            margins.append(Margin(np.reshape(pairs, ratio.shape), ratio))
    return Margin(*(np.mean(values, axis=0) for values in zip(*margins, strict=True)))


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


def untrained(backbone: XCiTTrunk) -> XCiTTrunk:
    """Return the same network with new random weights."""
    twin = copy.deepcopy(backbone)
    twin.init_cfg = None
    layers = cast(list[XCiTLayer], list(twin.layers))
    # mmengine logs lines for each parameter that it initializes. logging.disable() does not reach
    # its logger once that has logged something.
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.WARNING)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module in twin.modules():
            if hasattr(module, 'reset_parameters'):
                module.reset_parameters()
        twin._is_init = False
        twin.init_weights()
        for layer in layers:
            nn.init.ones_(layer.xca.temperature)
            for gamma in (layer.gamma1, layer.gamma2, layer.gamma3):
                nn.init.constant_(gamma, twin.layer_scale_init)
    logger.setLevel(level)
    return twin


def margin_rows(subject: Subject, samples: CocoObjects) -> list[dict[str, Any]]:
    """Return one row per layer: the model, and the same network with random weights."""
    trained, random = (
        object_margin(backbone, track(samples, what, len(samples)), subject.preprocess)
        for what, backbone in (
            ('trained', subject.backbone),
            ('random weights', untrained(subject.backbone)),
        )
    )
    columns = {'AUC': trained.auc, 'ratio': trained.ratio, 'AUC untrained': random.auc}
    return [
        {'layer': layer + 1}
        | {
            f'{name}: {what}': round(float(values[layer, i]), 3)
            for i, name in enumerate(NAMES)
            for what, values in columns.items()
        }
        for layer in range(len(trained.auc))
    ]


def describe_largest(rows: list[dict[str, Any]]) -> str:
    """Return a sentence about the best separation of objects from background, either way."""
    pairs = ((name, row) for name in NAMES for row in rows)
    name, row = max(pairs, key=lambda pair: abs(pair[1][f'{pair[0]}: AUC'] - 0.5))
    return (
        f'Largest margin: {name} of layer {row["layer"]}, AUC {row[f"{name}: AUC"]:.3f}, '
        f'{row[f"{name}: ratio"]:.2f} times the magnitude of the background.'
    )
