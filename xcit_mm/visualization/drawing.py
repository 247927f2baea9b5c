"""Figures: their sizes, heat maps over an image, color bars."""

from collections.abc import Mapping, Sequence
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
        """Draw the image itself, with its size above it."""
        axes.imshow(self.pixels, extent=(0, self.width, self.height, 0))
        axes.set_title(f'image, {self.width} x {self.height}', fontsize='medium')
        self._finish(axes)

    def show_map(
        self, axes: Axes, values: np.ndarray, stride: float, norm: Normalize, fade: bool = False
    ) -> AxesImage:
        """Draw a map (H', W') over the image in gray.

        Args:
            axes (Axes): Where to draw.
            values (np.ndarray): One value per token.
            stride (float): Image pixels per token.
            norm (Normalize): The range of the colors.
            fade (bool): Whether low values are transparent. Defaults to False.
        """
        extent = (0, self.width, self.height, 0)
        # Low contrast, so that the colors on top still match the color bar.
        axes.imshow(self.gray, cmap='gray', vmin=-128, vmax=383, extent=extent)
        shown = shrink(values)
        alpha = 0.75 * np.sqrt(np.asarray(norm(shown))) if fade else 0.75
        drawn = axes.imshow(
            shown, cmap=HEAT, norm=norm, extent=_extent(values, stride), alpha=alpha
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
    """Average an image or map so that it has at most :data:`SCREEN` pixels per side."""
    factor = SCREEN / max(values.shape[:2])
    if factor >= 1:
        return values
    size = [max(1, round(side * factor)) for side in values.shape[1::-1]]
    return mmcv.imresize(values, tuple(size), interpolation='area')


def as_array(figure: Figure, dpi: int = 100) -> np.ndarray:
    """Return a figure as RGB pixels (H, W, 3), as ``Visualizer.add_image`` of mmengine takes it."""
    figure.set_dpi(dpi)
    return img_from_canvas(FigureCanvasAgg(figure))


@dataclass
class HeatMaps:
    """Rows of heat maps next to the image, with one color bar.

    Args:
        title (str): The heading.
        titles (Sequence[str]): The text above each map of a row.
        rows (Mapping[str, Sequence[np.ndarray]]): The maps (H', W') of each row, by the text on its
            left.
        columns (int): Longer rows continue below.
        stride (float): Image pixels per token.
        unit (str): What the color bar shows.
        relative (bool): Whether the values are shares in 0...1, and small ones transparent.
            Defaults to False.
    """

    title: str
    titles: Sequence[str]
    rows: Mapping[str, Sequence[np.ndarray]]
    columns: int
    stride: float
    unit: str
    relative: bool = False

    def _lines(self) -> list[tuple[str, slice]]:
        """Return what is drawn below each other: a row, and the part of it that fits."""
        starts = range(0, len(self.titles), self.columns)
        parts = (slice(start, start + self.columns) for start in starts)
        return [(label, part) for part in parts for label in self.rows]

    def height(self, aspect: float) -> float:
        """Return the inches that it needs for an image of this height over width."""
        panel = (WIDTH - 1.2) / (min(len(self.titles), self.columns) + 2)
        return TITLE_HEIGHT + max(len(self._lines()), 2) * (panel * aspect + PANEL_TITLE_HEIGHT)

    def draw(self, canvas: FigureBase, frame: Frame) -> None:
        """Draw it over an image."""
        canvas.suptitle(self.title, fontsize='x-large')
        lines = self._lines()
        places = canvas.add_gridspec(max(len(lines), 2), min(len(self.titles), self.columns) + 2)
        frame.show(canvas.add_subplot(places[:2, :2]))
        shown = [values for maps in self.rows.values() for values in maps]
        norm = Normalize(0, 1) if self.relative else robust_range(shown)
        panels = []
        for i, (label, part) in enumerate(lines):
            for j, values in enumerate(self.rows[label][part]):
                panels.append(canvas.add_subplot(places[i, j + 2]))
                drawn = frame.show_map(panels[-1], values, self.stride, norm, self.relative)
                panels[-1].set_title(self.titles[part][j], fontsize='medium')
                if j == 0:
                    panels[-1].set_ylabel(label, fontsize='large')
        canvas.colorbar(
            drawn, ax=panels, label=self.unit, pad=0.01, aspect=30, extend='both', format='{x:.3g}'
        )


def robust_range(maps: Sequence[np.ndarray]) -> Normalize:
    """Return the range of colors for several maps, between :data:`PERCENTILES` of all values."""
    values = np.concatenate([shrink(m).ravel() for m in maps])
    low, high = np.percentile(values, PERCENTILES)
    # If values hardly differ, noise must not look like a pattern.
    room = 0.005 * max(abs(low), abs(high))
    return Normalize(low - room, high + room)
