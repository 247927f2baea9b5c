"""Pictures of predictions: colors, names, sizes."""

import itertools

import cv2
import numpy as np
import pytest

from xcit_mm_runtime import Detections, Segmentation
from xcit_mm_runtime.draw import SEGMENTATION_OPACITY, colors, drawable

NUMBERED = [f'name {i}' for i in range(150)]
NAMES = ['sky', 'façade', '道路', 'tree', 'car', 'a long name, ' * 20]


def noise(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def strip_colors(picture, width):
    """The colors to the right of an image, as RGB."""
    pixels = np.unique(picture[:, width:].reshape(-1, 3).astype(int) @ [1, 256, 65536])
    return {(p >> 16, p >> 8 & 255, p & 255) for p in pixels.tolist()}


@pytest.mark.parametrize('size', [(64, 64), (48, 200), (3000, 4000)])
def test_a_segmentation_has_the_colors_of_the_palette_and_a_legend_of_what_is_there(size):
    image, labels = noise(*size), np.full(size, 149, np.uint8)
    half = size[0] // 2
    labels[half:], labels[-1, :3] = 20, 255
    palette = [[i, 255 - i, 100] for i in range(150)]
    picture = Segmentation(labels, NUMBERED, palette).draw(image)
    for row, label in ((0, 149), (half, 20)):
        mixed = image[row] * (1 - SEGMENTATION_OPACITY)
        mixed = mixed + np.array(palette[label])[::-1] * SEGMENTATION_OPACITY
        assert np.abs(picture[row, : size[1]] - mixed).max() <= 1
    assert (picture[size[0] - 1, :3] == image[-1, :3]).all()  # no class: not painted
    seen = strip_colors(picture, size[1])
    assert {tuple(palette[149]), tuple(palette[20]), (0, 0, 0)} <= seen
    assert not {tuple(palette[i]) for i in range(150) if i not in (20, 149)} & seen


def test_every_class_of_a_small_image_is_in_the_legend():
    labels = np.arange(150, dtype=np.uint8).repeat(32).reshape(75, 64)
    picture = Segmentation(labels, NUMBERED).draw(noise(75, 64))
    assert {color[::-1] for color in colors(150)} <= strip_colors(picture, 64)


def test_with_more_than_255_classes_255_is_one_of_them():
    labels = np.full((32, 32), 255, np.uint16)
    image = noise(32, 32)
    for count, is_class in ((300, True), (200, False)):
        picture = Segmentation(labels, [str(i) for i in range(count)]).draw(image)
        assert (picture[:32, :32] != image).any() == is_class


def test_frames_of_a_video_have_one_size():
    labels = np.arange(65 * 97).reshape(65, 97)
    found = (Segmentation(labels % count, NUMBERED) for count in (1, 5, 150))
    ((height, width, _),) = {each.draw(noise(65, 97), fixed_size=True).shape for each in found}
    assert height == 65 and width > 97


def test_generated_colors_are_distinct_and_fixed():
    assert len(set(colors(300))) == 300
    assert colors(150)[:7] == colors(7)
    for one, other in itertools.combinations(np.array(colors(12)).astype(int), 2):
        assert np.abs(one - other).max() > 50
    assert colors(3, [[1, 2, 3]]) == [(3, 2, 1), *colors(3)[1:]]


def test_names_are_drawn_as_far_as_the_font_can():
    assert drawable(NAMES, 1) == 'facade' and drawable(NAMES, 2) == 'class 2'
    assert drawable(NAMES, 99) == 'class 99' and drawable(['a 道'], 0) == 'a ?'
    assert len(drawable(NAMES, 5)) < 40 and drawable(NAMES, 5).endswith('...')


@pytest.mark.parametrize('size', [(1, 1), (64, 64), (480, 640), (3000, 4000)])
@pytest.mark.parametrize('with_masks', [True, False])
def test_detections_above_the_threshold_are_drawn(size, with_masks):
    height, width = size
    image = np.full((height, width, 3), 128, np.uint8)
    box = [width * 0.2, height * 0.3, width * 0.7, height * 0.9]
    boxes = np.array([box, [-5, -5, 3, 3], [0, 0, width, height]], np.float32)
    masks = np.zeros((3, height, width), bool) if with_masks else None
    if with_masks:
        masks[0, height // 2 :, width // 2 : width * 2 // 3] = True
    labels, scores = np.array([2, 5, 7]), np.array([0.9, 0.4, 0.2], np.float32)
    palette = [[i * 10, 200, 30] for i in range(8)]
    picture = Detections(boxes, scores, labels, masks, NAMES, palette).draw(image)
    assert picture.shape == image.shape and (image == 128).all()
    seen = strip_colors(picture, 0)
    assert tuple(palette[7]) not in seen
    if min(size) > 1:
        assert {tuple(palette[2]), tuple(palette[5])} <= seen
        inside = picture[height * 3 // 4, width * 3 // 5]
        assert (inside != 128).any() == with_masks
    nothing = np.zeros((0, 4)), np.zeros(0), np.zeros(0, int)
    assert (Detections(*nothing, None, NAMES).draw(image) == image).all()


def test_names_do_not_hide_many_small_objects():
    """A name is drawn where it fits: of 100 small boxes and a large one, only above that."""
    image = np.zeros((200, 200, 3), np.uint8)
    places = [(x, y, x + 8, y + 8) for x in range(4, 200, 20) for y in range(60, 200, 14)]
    boxes = np.array([*places, (20, 20, 180, 50)], float)
    for count, is_tagged in ((len(places), False), (5, True)):
        chosen = [*range(count), -1]
        found = Detections(boxes[chosen], None, np.zeros(len(chosen), int), None, ['nucleus'])
        picture = found.draw(image)
        # Above a small box, and above the large one.
        assert picture[55, 6].any() == is_tagged and picture[15, 22].any()


def test_text_is_as_large_as_the_image_asks_for():
    small, large = (
        Segmentation(np.zeros((size, size), np.uint8), ['road']).draw(noise(size, size))[:, size:]
        for size in (200, 2000)
    )
    dark = [(strip < 100).all(axis=2).astype(np.uint8) for strip in (small, large)]
    heights = [cv2.boundingRect(pixels)[3] for pixels in dark]
    # The color of the swatch is bright.
    assert 7 <= heights[0] <= 12 and 4 * heights[0] < heights[1] < 6 * heights[0]
