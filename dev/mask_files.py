"""``python -m dev.mask_files``: writes images with a mask file for each object.

Either drawn microscope images with many small nuclei that touch, or the photographs of COCO. The
layout is that of the nuclei of the Data Science Bowl, ``SPLIT/ID/images/ID.png`` with masks in
``SPLIT/ID/masks/``. docs/studies/real_data.md trains on them.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from pycocotools.coco import COCO

from xcit_mm.errors import UserError
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime import read_image
from xcit_mm_runtime.progress import track

# Width and height of images, as frequent as they are in this list.
SIZES = ((256, 256),) * 5 + ((320, 256),) * 2 + ((360, 360),) * 2 + ((696, 520), (1024, 1024))
# The part of the area that nuclei cover, and the side of a nucleus in pixels.
COVERED, SIDES = (0.05, 0.3), (9, 30)
MOST, MIN_AREA = 375, 20
# A nucleus may cover this part of one that was drawn before.
MAX_HIDDEN = 0.1


def draw(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw an image, BGR of 8 bits, and the visible mask of each of its nuclei, bool.

    Args:
        rng (np.random.Generator): The source of all randomness.
        width (int): The width of the image.
        height (int): Its height.
    """
    side, spread = rng.uniform(*SIDES), rng.uniform(0.1, 0.3)
    count = min(MOST, int(rng.uniform(*COVERED) * width * height / side**2) + 1)
    numbers = np.zeros((height, width), np.int32)
    centers: list[np.ndarray] = []
    areas = [0]
    for _ in range(4 * count):
        center = rng.uniform((0, 0), (width, height))
        if centers and rng.random() < 0.5:  # beside another one, as cells after a division
            angle = rng.uniform(0, 2 * np.pi)
            beside = side * np.array([np.cos(angle), np.sin(angle)])
            center = centers[rng.integers(len(centers))] + beside
        mask = _ellipse(rng, numbers.shape, center, side * rng.lognormal(0, spread))
        hidden = np.bincount(numbers[mask], minlength=len(areas))
        if mask.sum() < MIN_AREA or (hidden > MAX_HIDDEN * np.array(areas))[1:].any():
            continue
        numbers[mask] = len(areas)
        areas.append(int(mask.sum()))
        centers.append(center)
        if len(centers) == count:
            break
    image = _light(rng, numbers, side)
    masks = [numbers == number for number in range(1, len(areas))]
    return image, [mask for mask in masks if mask.sum() >= MIN_AREA]


def _light(rng: np.random.Generator, numbers: np.ndarray, side: float) -> np.ndarray:
    """Return what a camera sees of numbered nuclei, which are darkest at their border."""
    height, width = numbers.shape
    bright = rng.uniform(25, 130, numbers.max() + 1)
    border = cv2.morphologyEx(numbers.astype(np.float32), cv2.MORPH_GRADIENT, np.ones((3, 3))) > 0
    depth = cv2.distanceTransform((~border).astype(np.uint8), cv2.DIST_L2, 3) / (side / 4)
    texture = _smooth(rng, width, height, 0.4, max(2, side / 5))
    nuclei = bright[numbers] * (0.5 + 0.5 * depth.clip(0, 1)) * texture
    light = rng.uniform(20, 60) * _smooth(rng, width, height, 0.5, 64) + nuclei * (numbers > 0)
    light = cv2.GaussianBlur(light, (0, 0), rng.uniform(0.7, 1.5))  # the lens
    light += rng.normal(0, rng.uniform(3, 8), light.shape)  # the camera
    tint = rng.uniform(0.7, 1.0, 3) if rng.random() < 0.3 else np.ones(3)
    image = light[..., None] * tint
    if rng.random() < 0.2:  # stained tissue in transmitted light
        image = 235 - image
    return image.clip(0, 255).astype(np.uint8)


def _smooth(
    rng: np.random.Generator, width: int, height: int, strength: float, grain: float
) -> np.ndarray:
    """Return a map of random values between 1 - strength and 1 that change over some pixels."""
    small = rng.uniform(1 - strength, 1, (int(height / grain) + 2, int(width / grain) + 2))
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def _ellipse(
    rng: np.random.Generator, shape: tuple[int, ...], center: np.ndarray, side: float
) -> np.ndarray:
    """Return the mask of an ellipse whose outline is bent a little."""
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    ratio, turn = rng.uniform(0.6, 1), rng.uniform(0, np.pi)
    radius = side / 2 * (1 + 0.08 * np.sin(rng.integers(2, 5) * angles + rng.uniform(0, 6)))
    points = np.stack([radius * np.cos(angles), ratio * radius * np.sin(angles)], 1)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    mask = np.zeros(shape, np.uint8)
    outline = np.round(16 * (points @ rotation.T + center)).astype(np.int32)
    cv2.fillPoly(mask, [outline], 1, shift=4)
    return mask.astype(bool)


def write(home: Path, image: np.ndarray, masks: Iterable[np.ndarray]) -> None:
    """Write an image and its masks."""
    (home / 'images').mkdir(parents=True)
    (home / 'masks').mkdir()
    cv2.imwrite(str(home / 'images' / f'{home.name}.png'), image)
    for index, mask in enumerate(masks):
        cv2.imwrite(str(home / 'masks' / f'{index:03}.png'), mask.astype(np.uint8) * 255)


def write_nuclei(folder: Path, train: int, val: int) -> None:
    """Draw nuclei."""
    for seed, (split, count) in enumerate((('train', train), ('val', val))):
        for number in track(range(count), split, count):
            rng = np.random.default_rng((seed, number))
            image, masks = draw(rng, *SIZES[rng.integers(len(SIZES))])
            write(folder / split / f'{number:04}', image, masks)


def write_coco(folder: Path, source: Path) -> None:
    """Write the objects of COCO that are not crowds, all of one class."""
    for split in ('train', 'val'):
        coco = COCO(source / f'annotations/instances_{split}2017.json')
        for image in track(coco.imgs.values(), split, len(coco.imgs)):
            pixels = read_image(source / f'{split}2017' / image['file_name'])
            objects = coco.loadAnns(coco.getAnnIds(image['id'], iscrowd=False))
            masks = [coco.annToMask(one) for one in objects]
            write(folder / split / Path(image['file_name']).stem, pixels, masks)


def run(args: argparse.Namespace) -> int:
    if args.folder.exists():
        raise UserError(f'{args.folder} already exists: remove it, or choose another folder.')
    if args.coco:
        write_coco(args.folder, args.coco)
    else:
        write_nuclei(args.folder, args.train, args.val)
    print(f'Written: {args.folder}')
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='python -m dev.mask_files', description=__doc__)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--coco', type=Path, help="COCO's folder; without it, nuclei are drawn")
    parser.add_argument('--train', type=int, default=300, help='nuclei (default: %(default)s)')
    parser.add_argument('--val', type=int, default=60, help='nuclei (default: %(default)s)')
    return explain_errors(run, parser.parse_args(argv))


if __name__ == '__main__':
    sys.exit(main())
