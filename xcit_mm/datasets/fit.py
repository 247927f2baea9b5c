"""Chooses the settings of a detector that depend on the sizes and numbers of its objects."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .objects import Objects, anchor_shapes, best_overlaps

FINE, COARSE = 8, 16
# The share of objects that should be no smaller than a patch when the network sees them.
VISIBLE = 0.7
# Images are enlarged at most this much for that.
MAX_ZOOM = 2.0
# The side of crops with a patch size of 8, on a CPU and on a GPU.
FINE_CROPS = (256, 512)
# Sides of square anchors in strides. COCO's is first: it is kept unless another one is better.
SCALES: tuple[float, ...] = (8, 6, 5, 4, 3, 2, 10, 12)
RATIOS = (0.5, 1.0, 2.0)
MORE_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
# An anchor reaches an object that it overlaps by this IoU. More anchors are used only if fewer do
# not reach ENOUGH of the objects.
REACHED, ENOUGH = 0.5, 0.9
# COCO's limit, that of our heads on a CPU and on a GPU, and the proposals for each detection.
MIN_DETECTIONS, MIN_PROPOSALS, PER_DETECTION = 100, (250, 1000), 2.5


@dataclass
class Fit:
    """Settings of a detector, and why they have their values.

    Args:
        patch_size (int): 8 or 16.
        resize (dict): ``scale`` (long and short side) or ``scale_factor``, and ``keep_ratio``, as
            for mmdet's ``Resize``.
        crop (int, optional): The side of the crops that training sees, and of the windows in which
            tests do; None for whole images.
        overlap (int): What neighboring windows have in common.
        scales (list[float]): Of anchors.
        ratios (list[float]): Of anchors.
        proposals (int): Per image.
        detections (int): Per image.
        per_view (float): The mean number of objects in a whole image or a crop.
        reasons (dict[str, str]): The figures that led to ``patch``, ``size``, ``anchors`` and
            ``limits``.
    """

    patch_size: int
    resize: dict[str, Any]
    crop: int | None
    overlap: int
    scales: list[float]
    ratios: list[float]
    proposals: int
    detections: int
    per_view: float
    reasons: dict[str, str]


def choose_fit(
    objects: Objects,
    scale: tuple[int, int],
    gpu: bool,
    patch_size: int | None = None,
    keep_anchors: bool = False,
) -> Fit:
    """Return the settings that fit the objects of a dataset.

    Args:
        objects (Objects): All objects of the dataset, at least one.
        scale (tuple[int, int]): Long and short side at which objects of usual sizes are seen.
        gpu (bool): Whether training runs on a GPU.
        patch_size (int, optional): 8 or 16, if that is decided. Defaults to None.
        keep_anchors (bool): Whether anchors must be those of COCO's detectors. Defaults to False.
    """
    resize, size = _choose_resize(objects, scale)
    seen = objects.scaled(resize)
    small = float(np.quantile(seen.sides, 1 - VISIBLE))
    share = float((seen.sides < COARSE).mean())
    patch_size = patch_size or (FINE if small < COARSE else COARSE)
    if (zoom := min(patch_size / small, _max_zoom(objects, seen))) > 1:
        size += f', enlarged {zoom:.1f} times for small objects'
        key = next(key for key in ('scale', 'scale_factor') if key in resize)
        grown = np.round(np.multiply(resize[key], zoom), 0 if key == 'scale' else 2)
        resize = {**resize, key: tuple(map(int, grown)) if key == 'scale' else float(grown)}
        seen = objects.scaled(resize)
    crop = _choose_crop(seen, min(scale) if patch_size == COARSE else FINE_CROPS[gpu])
    parts = np.minimum(1, crop / seen.images).prod(axis=1) if crop else 1
    scales, ratios, reached = _choose_anchors(seen.boxes, keep_anchors)
    most = int(objects.counts.max())
    detections = max(MIN_DETECTIONS, math.ceil(most / 100) * 100)
    overlap = _round_up(_large_side(seen)) if crop else 0
    views = 'whole images'
    if crop:
        views = (
            f'crops of {crop} x {crop} pixels. Tests slide windows of this size over each image, '
            f'with an overlap of {overlap}'
        )
    return Fit(
        patch_size,
        resize,
        crop,
        overlap,
        scales,
        ratios,
        max(MIN_PROPOSALS[gpu], int(PER_DETECTION * detections)),
        detections,
        per_view=float((objects.counts * parts).mean()),
        reasons={
            'patch': f'{share:.0%} of the objects are smaller than {COARSE} x {COARSE} pixels',
            'size': f'{size}. Training sees {views}',
            'anchors': f'the best one overlaps {reached:.0%} of the objects by an IoU of {REACHED} '
            'or more',
            'limits': f'an image has up to {most} objects',
        },
    )


def _choose_resize(objects: Objects, scale: tuple[int, int]) -> tuple[dict[str, Any], str]:
    """Return one size for all images, or their own if objects are seen better there; why."""
    resize = {'scale': scale, 'keep_ratio': True}
    usual = objects.scaled(resize)
    spread, own = (np.log(seen.sides).std() for seen in (usual, objects))
    small = float((usual.sides < COARSE).mean())
    if own < 0.9 * spread:
        why = 'at which objects differ less in size'
    elif small > 1 - VISIBLE and np.median(usual.images / objects.images) < 1:
        why = f'since {small:.0%} of the objects would be smaller than {COARSE} pixels without it'
    else:
        return resize, 'Images are scaled to about one size'
    return {'scale_factor': 1.0, 'keep_ratio': True}, f'Images keep their own resolution, {why}'


def _max_zoom(objects: Objects, seen: Objects) -> float:
    """Return how much larger images may be seen, which may be scaled down already."""
    return MAX_ZOOM / float(np.median(seen.images / objects.images))


def _choose_crop(seen: Objects, side: float) -> int | None:
    """Return the side of crops for training; None if most images are small enough to see whole."""
    # Most objects should be whole in most crops.
    side = _round_up(max(side, 2 * _large_side(seen)))
    sides = seen.images.min(axis=1)
    # A few much larger images would not fit in memory; crops leave the others whole.
    return side if np.quantile(sides, 0.9) > 1.2 * side or sides.max() > 3 * side else None


def _large_side(seen: Objects) -> float:
    """Return the longer side of the larger objects."""
    return float(np.quantile(seen.boxes.max(axis=1), 0.95))


def _round_up(side: float) -> int:
    return math.ceil(side / 32) * 32


def _choose_anchors(boxes: np.ndarray, keep: bool) -> tuple[list[float], list[float], float]:
    """Return scales and ratios of anchors, and the share of objects that they reach.

    Few anchors are tried first: one scale, more ratios, two scales.
    """
    options: list[tuple[list[float], tuple[float, ...]]] = [
        *(([scale], ratios) for ratios in (RATIOS, MORE_RATIOS) for scale in SCALES),
        *(([scale, round(scale * 2**0.5, 2)], RATIOS) for scale in SCALES),
    ]
    best = (-1.0, -1.0)
    for number, (scales, ratios) in enumerate(options[:1] if keep else options):
        if number % len(SCALES) == 0 and best[0] >= ENOUGH:
            break
        overlaps = best_overlaps(boxes, anchor_shapes(scales, ratios))
        score = round(float((overlaps >= REACHED).mean()), 2), round(float(overlaps.mean()), 2)
        if score > best:
            best, chosen = score, (scales, list(ratios))
    return *chosen, best[0]
