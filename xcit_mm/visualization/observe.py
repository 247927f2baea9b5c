"""Runs the network once and shows its tokens to pictures on the way."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure, FigureBase
from torch import Tensor

from ..models.trunk import XCiTTrunk
from .drawing import TITLE_HEIGHT, WIDTH, Frame, HeatMaps
from .images import Preprocess, as_rgb


class Picture(ABC):
    """Sees the tokens at every depth, takes what it needs from them, and draws that."""

    backbone: XCiTTrunk

    @abstractmethod
    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        """Look at the tokens before layer ``depth``, counted from 0.

        They are overwritten when this returns: keep only results or copies.

        Args:
            depth (int): 0 after the stem, the number of layers after the last.
            tokens (Tensor): (1, N, d).
            grid (tuple[int, int]): Their height and width.
        """

    @abstractmethod
    def result(self) -> Any:
        """Return the numbers behind the drawing."""

    def heat_maps(self) -> HeatMaps:
        """Return the result as heat maps; a picture of another kind draws itself."""
        raise NotImplementedError

    def height(self, aspect: float) -> float:
        """Return the inches that the drawing needs for an image of this height over width."""
        return self.heat_maps().height(aspect)

    def draw(self, canvas: FigureBase, frame: Frame) -> None:
        """Draw the result."""
        self.heat_maps().draw(canvas, frame)


@torch.no_grad()
def observe(backbone: XCiTTrunk, images: Tensor, pictures: Sequence[Picture]) -> None:
    """Run the layers once, as in inference, and show the tokens to all pictures.

    Args:
        backbone (XCiTTrunk): The network.
        images (Tensor): One image, (1, C, H, W), normalized.
        pictures (Sequence[Picture]): The pictures.
    """
    training = backbone.training
    backbone.eval()
    try:
        images = images.to(next(backbone.parameters()))
        for depth, (tokens, grid) in enumerate(backbone.trunk_outputs(images)):
            for picture in pictures:
                picture.observe(depth, tokens, grid)
    finally:
        backbone.train(training)


def draw(pictures: Sequence[Picture], image: np.ndarray, title: str = '') -> Figure:
    """Draw pictures in one figure, one below the other.

    Args:
        pictures (Sequence[Picture]): Pictures that have observed the image.
        image (np.ndarray): RGB, uint8 (H, W, 3), of any size.
        title (str): The heading.
    """
    frame = Frame(image)
    heights = [picture.height(frame.aspect) for picture in pictures]
    figure = Figure(figsize=(WIDTH, sum(heights) + (TITLE_HEIGHT if title else 0)))
    figure.set_layout_engine('constrained', w_pad=0.06, h_pad=0.06)
    if title:
        figure.suptitle(title, fontsize='medium', color='0.4')
    places = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    for picture, place in zip(pictures, places[:, 0], strict=True):
        picture.draw(place, frame)
    return figure


def run_picture(picture: Picture, image: np.ndarray, preprocess: Preprocess, figure: bool) -> Any:
    """Return the result of one picture, with the figure if requested."""
    image = as_rgb(image)
    observe(picture.backbone, preprocess(image), [picture])
    return (picture.result(), draw([picture], image)) if figure else picture.result()


def choose_layers(backbone: XCiTTrunk, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Return layers counted from 0; None means all.

    Args:
        backbone (XCiTTrunk): The network.
        layers (Sequence[int], optional): Layers counted from 1, as the paper does.
    """
    depth = len(backbone.layers)
    wanted = range(1, depth + 1) if layers is None else sorted(set(layers))
    if not wanted or not all(isinstance(i, int) and 1 <= i <= depth for i in wanted):
        raise ValueError(f'layers must be in 1...{depth}, not {layers}')
    return tuple(i - 1 for i in wanted)


def spread(depth: int, count: int) -> list[int]:
    """Spread up to ``count`` layers, counted from 1, evenly over the depth, including the last.

    Examples:
        >>> spread(12, 6)
        [2, 4, 6, 8, 10, 12]
    """
    return sorted({round(depth * i / count) or 1 for i in range(1, count + 1)})
