"""Runs the network once and shows its tokens to observers on the way."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from matplotlib.figure import Figure, FigureBase
from torch import Tensor

from ..models.trunk import XCiTTrunk
from .drawing import TITLE_HEIGHT, WIDTH, Frame
from .images import Preprocess, as_rgb


class Observer(Protocol):
    """Sees the tokens at every depth and takes what it needs from them."""

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        """Look at the tokens before layer ``depth``, counted from 0.

        They are overwritten when this returns: keep only results or copies.

        Args:
            depth (int): 0 after the stem, the number of layers after the last.
            tokens (Tensor): (1, N, d).
            grid (tuple[int, int]): Their height and width.
        """


class Picture(Observer, Protocol):
    """An observer whose result can be drawn."""

    backbone: XCiTTrunk

    def result(self) -> Any:
        """Return the numbers behind the drawing."""

    def height(self, aspect: float) -> float:
        """Return the inches that the drawing needs for an image of this height over width."""

    def draw(self, canvas: FigureBase, frame: Frame) -> None:
        """Draw the result."""


@torch.no_grad()
def observe(backbone: XCiTTrunk, images: Tensor, observers: Sequence[Observer]) -> None:
    """Run the layers once, as in inference, and show the tokens to all observers.

    Args:
        backbone (XCiTTrunk): The network.
        images (Tensor): One image, (1, C, H, W), normalized.
        observers (Sequence[Observer]): The observers.
    """
    training = backbone.training
    backbone.eval()
    try:
        images = images.to(next(backbone.parameters()))
        for depth, (tokens, grid) in enumerate(backbone.trunk_outputs(images)):
            for observer in observers:
                observer.observe(depth, tokens, grid)
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
