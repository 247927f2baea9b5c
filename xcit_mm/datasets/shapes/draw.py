"""Draws scenes of shapes: the image, and the visible part of every shape.

The outline alone determines the class: color, texture, size, rotation and position say nothing
about it.
"""

from dataclasses import dataclass, field

import cv2
import numpy as np

CLASSES = ('disc', 'bar', 'triangle', 'star', 'arc')
# A new shape must leave at least this fraction of every other one visible, so that every visible
# shape can be recognized and is annotated.
MIN_VISIBLE = 0.75
ATTEMPTS = 20
# Shapes are light and backgrounds mostly dark, in any hue (negatives the other way round), and a
# shape differs from what is behind it by this much, summed over the channels. With contrasts of
# both signs in one image, the demo's Semantic FPN reached an mIoU of 47 after 500 iterations, and
# this way 82.
MIN_LIGHTNESS, MIN_CONTRAST = 165, 200
# In either direction, in radians.
MAX_ROTATION = 0.4
# Sub-pixel bits of OpenCV's drawing functions.
SHIFT = 4


@dataclass
class Shape:
    """One shape of a scene.

    Args:
        label (int): Index into :data:`CLASSES`.
        mask (np.ndarray): Its visible pixels, bool (H, W).
        full_area (int): Number of its pixels before anything covered it.
        is_crowd (bool): Whether it is a group of small shapes, as COCO's crowds.
    """

    label: int
    mask: np.ndarray
    full_area: int
    is_crowd: bool = False


@dataclass
class Scene:
    """An image (H, W, 3) in BGR and its shapes, from back to front."""

    image: np.ndarray
    shapes: list[Shape] = field(default_factory=list)


def outline(label: int) -> np.ndarray:
    """Return the outline of a class around the origin, with a radius of about 1, (N, 2)."""
    name = CLASSES[label]
    if name == 'disc':
        return 0.9 * _on_circle(np.linspace(0, 2 * np.pi, 48, endpoint=False))
    if name == 'bar':
        return np.array([[-1.1, -0.4], [1.1, -0.4], [1.1, 0.4], [-1.1, 0.4]])
    if name == 'triangle':
        return 1.1 * _on_circle(np.pi / 2 + np.arange(3) * 2 * np.pi / 3)
    if name == 'star':
        radius = np.where(np.arange(10) % 2, 0.45, 1.1)
        return radius[:, None] * _on_circle(np.arange(10) * np.pi / 5)
    outer = _on_circle(np.linspace(0.5, 2 * np.pi - 0.5, 32))
    return np.concatenate([outer, 0.4 * outer[::-1]])


def _on_circle(angle: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def draw_scene(rng: np.random.Generator, height: int, width: int, negatives: float = 0.0) -> Scene:
    """Draw a scene with a background and, mostly, some shapes.

    Args:
        rng (np.random.Generator): The source of all randomness.
        height (int): Height of the image.
        width (int): Its width.
        negatives (float): Probability of a negative: dark shapes on a light ground. Defaults
            to 0.
    """
    scene = Scene(_background(rng, height, width))
    chance = rng.random()
    if chance >= 0.05:  # otherwise an image without objects
        for _ in range(rng.integers(1, 5)):
            _place_shape(rng, scene)
    if chance > 0.95:
        _paint_crowd(rng, scene)
    if negatives and rng.random() < negatives:
        scene.image = 255 - scene.image
    return _with_noise(rng, scene)


def _place_shape(rng: np.random.Generator, scene: Scene) -> None:
    """Add a shape where it hides none of the others, unless the scene is full."""
    height, width = scene.image.shape[:2]
    label, radius = int(rng.integers(len(CLASSES))), _radius(rng, height, width)
    margin = 0.7 * radius
    for _ in range(ATTEMPTS):
        center = rng.uniform((margin, margin), (width - margin, height - margin))
        mask = _fill(height, width, _polygon(rng, label, center, radius))
        if _hides_none(scene, mask):
            _paint(rng, scene, label, mask)
            return


def _hides_none(scene: Scene, mask: np.ndarray) -> bool:
    return all(
        (shape.mask & ~mask).sum() >= MIN_VISIBLE * shape.full_area for shape in scene.shapes
    )


def _radius(rng: np.random.Generator, height: int, width: int) -> float:
    """Return a random radius: small ones are as likely as large ones."""
    return float(np.exp(rng.uniform(np.log(0.19), np.log(0.34)))) * min(height, width)


def _polygon(rng: np.random.Generator, label: int, center: np.ndarray, radius: float) -> np.ndarray:
    angle = rng.uniform(-MAX_ROTATION, MAX_ROTATION)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    stretch = np.diag(rng.uniform(0.85, 1.15, 2))
    return outline(label) @ stretch @ rotation.T * radius + center


def _fill(height: int, width: int, polygon: np.ndarray) -> np.ndarray:
    mask = np.zeros((height, width), np.uint8)
    points = np.round(polygon * 2**SHIFT).astype(np.int32)
    cv2.fillPoly(mask, [points], 1, lineType=cv2.LINE_8, shift=SHIFT)
    return mask.astype(bool)


def _paint(
    rng: np.random.Generator, scene: Scene, label: int, mask: np.ndarray, is_crowd: bool = False
) -> None:
    if not mask.any():
        return
    _cover(scene, mask)
    height, width = mask.shape
    behind = scene.image[mask].mean(0)
    color = _light_color(rng)
    while np.abs(color - behind).sum() < MIN_CONTRAST:
        color = _light_color(rng)
    texture = _gradient(rng, height, width, rng.uniform(0, 40))
    scene.image[mask] = np.clip(color + texture[mask, None], 0, 255)
    scene.shapes.append(Shape(label, mask, int(mask.sum()), is_crowd))


def _light_color(rng: np.random.Generator) -> np.ndarray:
    color = rng.uniform(0, 255, 3)
    while color.mean() < MIN_LIGHTNESS:
        color = rng.uniform(0, 255, 3)
    return color


def _cover(scene: Scene, mask: np.ndarray) -> None:
    """Mark what is behind a new shape as invisible."""
    for shape in scene.shapes:
        shape.mask &= ~mask


def _paint_crowd(rng: np.random.Generator, scene: Scene) -> None:
    height, width = scene.image.shape[:2]
    label = int(rng.integers(len(CLASSES)))
    spread = 0.12 * min(height, width)
    for _ in range(ATTEMPTS):
        middle = rng.uniform((spread, spread), (width - spread, height - spread))
        mask = np.zeros((height, width), bool)
        for _ in range(12):
            center = middle + rng.uniform(-spread, spread, 2)
            mask |= _fill(height, width, _polygon(rng, label, center, 0.04 * min(height, width)))
        if _hides_none(scene, mask):
            _paint(rng, scene, label, mask, is_crowd=True)
            return


def _background(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draw a gradient, and on most images stripes, a checkerboard or blobs on it."""
    color = rng.uniform(20, 110, 3)
    image = color + _gradient(rng, height, width, rng.uniform(0, 60))[..., None]
    tint = rng.uniform(-1, 1, 3) * rng.uniform(10, 35)
    y, x = np.mgrid[:height, :width]
    angle = rng.uniform(0, np.pi)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    period = rng.uniform(0.08, 0.4) * min(height, width)
    kind = rng.integers(4)
    if kind == 1:
        image = image + tint * np.sign(np.sin(2 * np.pi * along / period))[..., None]
    elif kind == 2:
        board = np.sign(np.sin(2 * np.pi * along / period) * np.sin(2 * np.pi * across / period))
        image = image + tint * board[..., None]
    elif kind == 3:
        coarse = rng.normal(size=(6, 6)).astype(np.float32)
        blobs = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        image = image + tint * blobs[..., None]
    return np.clip(image, 0, 255)


def _gradient(rng: np.random.Generator, height: int, width: int, strength: float) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    angle = rng.uniform(0, 2 * np.pi)
    ramp = (x / width - 0.5) * np.cos(angle) + (y / height - 0.5) * np.sin(angle)
    return ramp * strength * 2


def _with_noise(rng: np.random.Generator, scene: Scene) -> Scene:
    noise = rng.normal(scale=rng.uniform(0, 8), size=scene.image.shape)
    scene.image = np.clip(np.round(scene.image + noise), 0, 255).astype(np.uint8)
    return scene
