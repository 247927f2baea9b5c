"""Draws predictions. All pictures of predictions on users' images are made here.

Images are BGR, uint8 (H, W, 3), as OpenCV reads them. Colors of a palette are RGB, as in the
metadata of mmdet and mmseg.
"""

import colorsys
import functools
import unicodedata
from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .results import Detections, Segmentation, class_name

Color = tuple[int, int, int]
# Labels without a class, where there are fewer classes.
IGNORED = 255
MASK_OPACITY = 0.45
SEGMENTATION_OPACITY = 0.6
# Smaller text cannot be read.
MIN_FONT = 11
MAX_NAME = 36
# More tags than this that cover more of the picture than this hide what they name.
MANY_TAGS, MAX_TAGGED = 10, 0.2
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def draw_detections(image: np.ndarray, found: Detections, score_thr: float = 0.3) -> np.ndarray:
    """Draw boxes with class names and scores, and masks with their outlines.

    Among many small objects, those whose name is wider than their box get none.

    Args:
        image (np.ndarray): BGR.
        found (Detections): The objects. Those without scores are all drawn.
        score_thr (float): Only detections that score above this are drawn. Defaults to 0.3.

    Returns:
        np.ndarray: A new image of the same size.
    """
    picture = np.ascontiguousarray(image).copy()
    shown = np.arange(len(found.boxes))
    if found.scores is not None:
        shown = np.flatnonzero(found.scores > score_thr)
        shown = shown[np.argsort(found.scores[shown], kind='stable')]  # the best on top
    bgr = colors(int(found.labels.max(initial=-1)) + 1, found.palette)
    thickness = max(1, round(min(picture.shape[:2]) / 300))
    if found.masks is not None:
        for i in shown:
            _blend(picture, found.masks[i], bgr[found.labels[i]], thickness)
    corners = np.rint(found.boxes).astype(int)
    for i in shown:
        cv2.rectangle(picture, corners[i, :2], corners[i, 2:], bgr[found.labels[i]], thickness)
    tags = {}
    for i in shown:
        text = drawable(found.classes, int(found.labels[i]))
        text += '' if found.scores is None else f' {found.scores[i]:.2f}'
        tags[i] = _text_mask(text, _font_size(picture))
    covered = sum(tag.size for tag in tags.values()) / (picture.shape[0] * picture.shape[1])
    is_crowded = len(tags) > MANY_TAGS and covered > MAX_TAGGED
    for i, tag in tags.items():
        if not is_crowded or tag.shape[1] <= corners[i, 2] - corners[i, 0]:
            _tag(picture, tag, corners[i], bgr[found.labels[i]])
    return picture


def draw_segmentation(
    image: np.ndarray, found: Segmentation, fixed_size: bool = False
) -> np.ndarray:
    """Color every pixel by its class, and name the classes that are there in a strip beside it.

    Args:
        image (np.ndarray): BGR.
        found (Segmentation): The class of each pixel; 255 and negative numbers are no class.
        fixed_size (bool): Whether the strip depends only on the size of the image and on the names,
            as the frames of a video need. Classes for which it has no room are counted. Defaults
            to False.

    Returns:
        np.ndarray: A new image with the given one on the left, and the strip on the right.
    """
    labels, classes = found.labels.astype(np.int64), found.classes
    valid = (labels >= 0) & ((labels != IGNORED) | (len(classes) > IGNORED))
    counts = np.bincount(labels[valid])
    bgr = colors(max(len(counts), len(classes), 1), found.palette)
    painted = np.array(bgr, np.uint8)[np.where(valid, labels, 0)]
    mixed = cv2.addWeighted(image, 1 - SEGMENTATION_OPACITY, painted, SEGMENTATION_OPACITY, 0)
    picture = np.where(valid[..., None], mixed, image)
    present = sorted(np.flatnonzero(counts), key=lambda i: -counts[i])  # the largest first
    entries = [(drawable(classes, int(i)), bgr[i]) for i in present]
    return _with_legend(picture, entries, classes if fixed_size else None)


def side_by_side(pictures: Mapping[str, np.ndarray]) -> np.ndarray:
    """Put pictures next to each other, each below its title.

    Args:
        pictures (Mapping[str, np.ndarray]): Title -> BGR picture.
    """
    height = max(map(len, pictures.values()))
    size = max(map(_font_size, pictures.values()))
    columns = []
    for title, picture in pictures.items():
        mask = _text_mask(title, size)
        shape = len(mask) + height, max(picture.shape[1], mask.shape[1]) + size // 2, 3
        column = np.full(shape, 255, np.uint8)
        _write(column, mask, 0, 0, WHITE, BLACK)
        column[len(mask) : len(mask) + len(picture), : picture.shape[1]] = picture
        columns.append(column)
    return np.concatenate(columns, axis=1)


def colors(count: int, palette: Sequence[Sequence[int]] | None = None) -> list[Color]:
    """Return one BGR color per class: the palette's, else a fixed one that is easy to tell apart.

    Args:
        count (int): Number of classes.
        palette (Sequence, optional): RGB colors of the first classes.
    """
    given = [(int(blue), int(green), int(red)) for red, green, blue in palette or ()]
    return given + [_generated_color(i) for i in range(len(given), count)]


def _generated_color(i: int) -> Color:
    """Return a color whose hue is a golden angle from the one before: no two hues are equal."""
    value = (1.0, 0.7, 0.85)[i // 7 % 3]
    saturation = (0.85, 0.5)[i // 21 % 2]
    red, green, blue = colorsys.hsv_to_rgb(i * 0.618034 % 1, saturation, value)
    return round(255 * blue), round(255 * green), round(255 * red)


def drawable(classes: Sequence[str], label: int) -> str:
    """Return a name in letters of Pillow's own font: without accents, ? for what is not Latin.

    Args:
        classes (Sequence[str]): The names.
        label (int): Index of the class.
    """
    letters = unicodedata.normalize('NFKD', class_name(classes, label))
    plain = ''.join(c for c in letters if not unicodedata.combining(c))
    drawn = ''.join(c if c.isascii() and c.isprintable() else '?' for c in plain).strip()
    if not drawn.strip('? '):
        return f'class {label}'
    return drawn if len(drawn) <= MAX_NAME else f'{drawn[: MAX_NAME - 3]}...'


def _blend(picture: np.ndarray, mask: np.ndarray, color: Color, thickness: int) -> None:
    x, y, width, height = cv2.boundingRect(mask.astype(np.uint8))
    if not width:
        return
    part, inside = picture[y : y + height, x : x + width], mask[y : y + height, x : x + width]
    mixed = part * (1 - MASK_OPACITY) + np.array(color) * MASK_OPACITY
    part[inside] = mixed[inside].astype(np.uint8)
    outlines, _ = cv2.findContours(
        inside.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    cv2.drawContours(picture, outlines, -1, color, thickness, offset=(x, y))


def _tag(picture: np.ndarray, mask: np.ndarray, box: np.ndarray, color: Color) -> None:
    """Write above the top left corner of a box, or inside it at the edge of the image."""
    height, width = mask.shape
    y = box[1] - height if box[1] >= height else box[1]
    x = min(max(box[0], 0), max(picture.shape[1] - width, 0))
    y = min(max(y, 0), max(picture.shape[0] - height, 0))
    _write(picture, mask, x, y, color, _readable_on(color))


def _with_legend(
    picture: np.ndarray, entries: list[tuple[str, Color]], all_names: Sequence[str] | None
) -> np.ndarray:
    """Add a white strip with a row for each entry.

    Args:
        picture (np.ndarray): BGR.
        entries (list[tuple]): Names and colors.
        all_names (Sequence[str], optional): All names that can occur. Given, the strip has room for
            the widest of them and is as high as the picture.
    """
    size, height = _font_size(picture), len(picture)
    row = _text_mask('', size).shape[0]
    if all_names is None:
        # More rows than the picture has room for rather than many columns.
        rows = max(height // row, min(len(entries), 20))
        names = [name for name, _ in entries]
        height = max(height, min(len(entries), rows) * row)
    else:
        rows = max(height // row, 1)
        names = [drawable(all_names, i) for i in range(len(all_names))]
        if len(entries) > rows:
            entries = [*entries[: rows - 1], (f'{len(entries) - rows + 1} more', WHITE)]
    columns = [entries[i : i + rows] for i in range(0, len(entries), rows)] or [[]]
    width = 2 * row + max((_text_mask(name, size).shape[1] for name in names), default=0)
    canvas = np.full((height, picture.shape[1] + width * len(columns), 3), 255, np.uint8)
    canvas[: len(picture), : picture.shape[1]] = picture
    margin = max(1, row // 6)
    for i, (name, color) in enumerate(entries):
        x, y = picture.shape[1] + i // rows * width, i % rows * row
        swatch = (x + margin, y + margin), (x + row, y + row - margin)
        cv2.rectangle(canvas, *swatch, color, cv2.FILLED)
        _write(canvas, _text_mask(name, size), x + row + margin, y, WHITE, BLACK)
    return canvas


def _font_size(picture: np.ndarray) -> int:
    return max(MIN_FONT, round(min(picture.shape[:2]) / 40))


@functools.lru_cache(maxsize=4096)
def _text_mask(text: str, size: int) -> np.ndarray:
    """Return how much text covers each pixel, 0...255; all lines of a size are as high."""
    font = _font(size)
    ascent, descent = font.getmetrics()
    width = round(font.getlength(text)) + size // 2
    line = Image.new('L', (width, ascent + descent + size // 4))
    ImageDraw.Draw(line).text((size // 4, size // 8), text, 255, font)
    return np.asarray(line)


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)  # type: ignore[return-value]


def _write(
    picture: np.ndarray, mask: np.ndarray, x: int, y: int, ground: Color, text: Color
) -> None:
    """Put text on a rectangle of one color, cut off at the edges of the picture."""
    part = picture[y : y + mask.shape[0], x : x + mask.shape[1]]
    cover = mask[: part.shape[0], : part.shape[1], None] / 255
    part[:] = np.rint(np.array(ground) * (1 - cover) + np.array(text) * cover)


def _readable_on(color: Color) -> Color:
    blue, green, red = color
    return BLACK if 0.114 * blue + 0.587 * green + 0.299 * red > 140 else WHITE
