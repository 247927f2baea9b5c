"""One pass of the network, and whoever wants to look at its tokens on the way."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from matplotlib.figure import Figure, FigureBase
from torch import Tensor

from ..models.trunk import XCiTTrunk
from .drawing import Frame, new_figure
from .images import Preprocess, as_rgb


class Observer(Protocol):
    """Is shown the tokens at every depth, and takes from them what it needs."""

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        """Look at the tokens in front of layer ``depth``, counted from 0.

        They are overwritten when this returns: what is kept must be a result or a copy.

        Args:
            depth (int): 0 behind the stem, the number of layers behind the last.
            tokens (Tensor): (1, N, d).
            grid (tuple[int, int]): Their height and width.
        """


class Picture(Observer, Protocol):
    """An observer whose result can be drawn."""

    def result(self) -> Any:
        """The numbers behind the drawing."""

    def height(self, aspect: float) -> float:
        """Inches that the drawing needs for an image of this height over width."""

    def draw(self, canvas: FigureBase, frame: Frame) -> None:
        """Draw the result."""


@torch.no_grad()
def observe(backbone: XCiTTrunk, images: Tensor, observers: Sequence[Observer]) -> None:
    """Run the layers once, as in inference, and show the tokens to all observers.

    Args:
        backbone (XCiTTrunk): The network.
        images (Tensor): One image, (1, C, H, W), normalised.
        observers (Sequence[Observer]): Who looks.
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
    """One figure of several pictures, below each other.

    Args:
        pictures (Sequence[Picture]): Pictures that have observed the image.
        image (np.ndarray): RGB, uint8 (H, W, 3), of any size.
        title (str): The heading.
    """
    frame = Frame(image)
    figure, places = new_figure([picture.height(frame.aspect) for picture in pictures], title)
    for picture, place in zip(pictures, places, strict=True):
        picture.draw(place, frame)
    return figure


def look(
    picture: Picture, backbone: XCiTTrunk, image: np.ndarray, preprocess: Preprocess, figure: bool
) -> Any:
    """The result of one picture, with the figure if that is wanted."""
    image = as_rgb(image)
    observe(backbone, preprocess(image), [picture])
    return (picture.result(), draw([picture], image)) if figure else picture.result()
