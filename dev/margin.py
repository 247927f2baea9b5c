"""How well query and key magnitude separates objects from the background."""

import contextlib
import copy
import io
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import mmcv
import numpy as np
import torch
from mmengine.logging import MMLogger
from torch import nn

from xcit_mm.errors import UserError
from xcit_mm.models.layers import XCiTLayer
from xcit_mm.models.trunk import XCiTTrunk
from xcit_mm.visualization.images import Preprocess
from xcit_mm.visualization.magnitude import QueryKeyMagnitude
from xcit_mm.visualization.observe import observe

# A token is on an object if objects cover at least the first fraction of its square, and on the
# background if they cover at most the second. Tokens in between, on an outline, count as neither.
OBJECT, BACKGROUND = 0.5, 0.0


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
    if not margins:
        raise ValueError('no image has both tokens on an object and tokens on the background')
    return Margin(*(np.mean(values, axis=0) for values in zip(*margins, strict=True)))


def token_cover(mask: np.ndarray, grid: tuple[int, ...], patch_size: int) -> np.ndarray:
    """The fraction of each token's square within the image that a mask covers."""
    shape = (grid[0], patch_size, grid[1], patch_size)
    padding = [(0, side * patch_size - have) for side, have in zip(grid, mask.shape, strict=True)]
    covered, all_of_it = (
        np.pad(pixels.astype(np.float32), padding).reshape(shape).sum((1, 3))
        for pixels in (mask, np.ones_like(mask))
    )
    return covered / all_of_it


def auc(larger: np.ndarray, smaller: np.ndarray) -> float:
    """The probability that a value of the first exceeds one of the second; ties count half."""
    ordered = np.sort(smaller)
    below = np.searchsorted(ordered, larger, 'left') + np.searchsorted(ordered, larger, 'right')
    return float(below.mean() / 2 / len(ordered))


def untrained(backbone: XCiTTrunk) -> XCiTTrunk:
    """The same network with new random weights."""
    twin = copy.deepcopy(backbone)
    twin.init_cfg = None
    layers = cast(list[XCiTLayer], list(twin.layers))
    # mmengine logs lines for each parameter that it initializes. logging.disable() does not reach
    # its logger once that has logged something.
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
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
    finally:
        logger.setLevel(level)
    return twin


class CocoObjects:
    """Images of a dataset in COCO's layout, RGB, each with the union of its objects.

    Args:
        images (Path): The folder of the images.
        annotations (Path): The JSON file.
        limit (int, optional): Number of images. Defaults to None, all.
    """

    def __init__(self, images: Path, annotations: Path, limit: int | None = None) -> None:
        from pycocotools.coco import COCO

        self.folder = images
        with contextlib.redirect_stdout(io.StringIO()):
            self.coco = COCO(str(annotations))
        if not all(annotation.get('segmentation') for annotation in self.coco.anns.values()):
            raise UserError(f'{annotations} has objects without a mask, and masks are needed here.')
        self.infos = self.coco.loadImgs(self.coco.getImgIds())[:limit]

    def __len__(self) -> int:
        return len(self.infos)

    def labels(self) -> list[list[float]]:
        """For each image, 1 for the classes that it has and 0 for the others."""
        classes = self.coco.getCatIds()
        annotations = (self.coco.loadAnns(self.coco.getAnnIds(info['id'])) for info in self.infos)
        present = ({annotation['category_id'] for annotation in image} for image in annotations)
        return [[float(c in found) for c in classes] for found in present]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for info in self.infos:
            image = mmcv.imread(self.folder / info['file_name'], channel_order='rgb')
            mask = np.zeros(image.shape[:2], bool)
            for annotation in self.coco.loadAnns(self.coco.getAnnIds(info['id'])):
                mask |= self.coco.annToMask(annotation).astype(bool)
            yield image, mask
