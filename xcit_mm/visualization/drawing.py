"""Figures: their sizes, heat maps over an image, color bars."""

from collections.abc import Sequence
from dataclasses import dataclass

import mmcv
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import AxesImage
from mmengine.visualization.utils import img_from_canvas

# Inches; a figure has 100 pixels per inch unless it is saved with more.
WIDTH = 16.0
TITLE_HEIGHT = 0.45
PANEL_TITLE_HEIGHT = 0.25
# Images and maps are drawn with at most this many pixels per side.
SCREEN = 1200
# Panels of very wide or tall images would be too thin; these are letterboxed instead.
ASPECTS = (0.3, 2.0)
HEAT = 'inferno'
# A map is drawn between these percentiles, so that a few tokens do not take up the whole scale.
PERCENTILES = (1, 99)


class Frame:
    """The image that a picture belongs to, at screen size.

    Args:
        image (np.ndarray): RGB, uint8 (H, W, 3), of any size.
    """

    def __init__(self, image: np.ndarray) -> None:
        self.height, self.width = image.shape[:2]
        self.pixels = shrink(image)
        self.gray = mmcv.rgb2gray(self.pixels)
        self.aspect = float(np.clip(self.height / self.width, *ASPECTS))

    def show(self, axes: Axes) -> None:
        """Draw the image itself."""
        axes.imshow(self.pixels, extent=(0, self.width, self.height, 0))
        self._finish(axes)

    def show_map(self, axes: Axes, values: np.ndarray, stride: float, norm: Normalize) -> AxesImage:
        """Draw a map (H', W') over the image in gray.

        Args:
            axes (Axes): Where to draw.
            values (np.ndarray): One value per token.
            stride (float): Image pixels per token.
            norm (Normalize): The range of the colors.
        """
        extent = (0, self.width, self.height, 0)
        # Low contrast, so that the colors on top still match the color bar.
        axes.imshow(self.gray, cmap='gray', vmin=-128, vmax=383, extent=extent)
        drawn = axes.imshow(
            shrink(values), cmap=HEAT, norm=norm, extent=_extent(values, stride), alpha=0.75
        )
        self._finish(axes)
        return drawn

    def show_colors(self, axes: Axes, colors: np.ndarray, stride: float) -> None:
        """Draw an RGB map (H', W', 3) in 0...1 instead of the image."""
        axes.imshow(shrink(colors), extent=_extent(colors, stride))
        self._finish(axes)

    def _finish(self, axes: Axes) -> None:
        # The last tokens or cells may extend beyond the image.
        axes.set(xlim=(0, self.width), ylim=(self.height, 0), xticks=[], yticks=[])


def _extent(values: np.ndarray, stride: float) -> tuple[float, float, float, float]:
    return 0, values.shape[1] * stride, values.shape[0] * stride, 0


def shrink(values: np.ndarray) -> np.ndarray:
    """An image or map of at most :data:`SCREEN` pixels per side, averaged."""
    factor = SCREEN / max(values.shape[:2])
    if factor >= 1:
        return values
    size = [max(1, round(side * factor)) for side in values.shape[1::-1]]
    return mmcv.imresize(values, tuple(size), interpolation='area')


def new_figure(heights: Sequence[float], title: str = '') -> tuple[Figure, list[FigureBase]]:
    """A figure with places for pictures, one below the other.

    Args:
        heights (Sequence[float]): Height of each picture in inches.
        title (str): The heading.
    """
    height = sum(heights) + (TITLE_HEIGHT if title else 0)
    figure = Figure(figsize=(WIDTH, height))
    figure.set_layout_engine('constrained', w_pad=0.06, h_pad=0.06)
    if title:
        figure.suptitle(title, fontsize='medium', color='0.4')
    places = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    return figure, list(places[:, 0])


def as_array(figure: Figure, dpi: int = 100) -> np.ndarray:
    """A figure as RGB pixels (H, W, 3), as mmengine's ``Visualizer.add_image`` takes them."""
    figure.set_dpi(dpi)
    return img_from_canvas(FigureCanvasAgg(figure))


@dataclass
class Row:
    """A row of maps of one kind.

    Args:
        label (str): The text on its left.
        titles (list[str]): The text above each map.
        maps (list[np.ndarray]): The maps, (H', W') each.
    """

    label: str
    titles: list[str]
    maps: list[np.ndarray]


def heat_maps_height(rows: int, columns: int, aspect: float) -> float:
    """Inches that :func:`draw_heat_maps` needs for an image of this height over width."""
    panel = (WIDTH - 1.2) / (columns + 2)
    return TITLE_HEIGHT + max(rows, 2) * (panel * aspect + PANEL_TITLE_HEIGHT)


def draw_heat_maps(
    canvas: FigureBase, frame: Frame, title: str, rows: Sequence[Row], stride: float, unit: str
) -> None:
    """Draw the image and, next to it, rows of heat maps with one color bar.

    Args:
        canvas (FigureBase): Where to draw.
        frame (Frame): The image.
        title (str): The heading.
        rows (Sequence[Row]): What to draw.
        stride (float): Image pixels per token.
        unit (str): What the color bar shows.
    """
    canvas.suptitle(title, fontsize='x-large')
    columns = max(len(row.maps) for row in rows)
    places = canvas.add_gridspec(max(len(rows), 2), columns + 2)
    axes = canvas.add_subplot(places[:2, :2])
    frame.show(axes)
    axes.set_title(f'image, {frame.width} x {frame.height}', fontsize='medium')
    norm = robust_range([m for row in rows for m in row.maps])
    panels = []
    for i, row in enumerate(rows):
        for j, (name, values) in enumerate(zip(row.titles, row.maps, strict=True)):
            panels.append(canvas.add_subplot(places[i, j + 2]))
            drawn = frame.show_map(panels[-1], values, stride, norm)
            panels[-1].set_title(name, fontsize='medium')
            if j == 0:
                panels[-1].set_ylabel(row.label, fontsize='large')
    canvas.colorbar(
        drawn, ax=panels, label=unit, pad=0.01, aspect=30, extend='both', format='{x:.3g}'
    )


def robust_range(maps: Sequence[np.ndarray]) -> Normalize:
    """The range of colors for several maps, between :data:`PERCENTILES` of all values."""
    values = np.concatenate([shrink(m).ravel() for m in maps])
    low, high = np.percentile(values, PERCENTILES)
    # If values hardly differ, noise must not look like a pattern.
    room = 0.005 * max(abs(low), abs(high))
    return Normalize(low - room, high + room)
