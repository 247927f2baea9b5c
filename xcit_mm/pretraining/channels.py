"""Reads images of 1 to 16 channels and up to 16 bits, for all tasks."""

from logging import WARNING
from pathlib import Path

import cv2
import mmcv
import numpy as np
from mmengine.logging import print_log
from mmengine.registry import TRANSFORMS

from xcit_mm_runtime.inputs import decode, to_8_bit, to_network_depth

from ..configs import check_bit_depth

MAX_CHANNELS = 16


def read_channels(path: str, channels: int, bit_depth: int = 16) -> np.ndarray:
    """Read an image as (height, width, channels) in the type of the file, colors as RGB.

    With 3 channels, every image is read as infer reads it. With 1, colors become gray. Other
    numbers must be the file's: those of its pixels, of the pages of a TIFF, or of an array (.npy).

    Args:
        path (str): The file.
        channels (int): How many channels to read.
        bit_depth (int): How many bits the values of 16-bit images have. They are scaled to all 16
            bits; three channels, to 8. Defaults to 16.

    Raises:
        ValueError: If the file cannot be read, or has another number of channels.
    """
    if path.lower().endswith('.npy'):
        image = np.load(path, allow_pickle=False)
    elif channels == 3:
        bgr = decode(np.fromfile(path, np.uint8), bit_depth)
        image = None if bgr is None else cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
    else:
        image = _read_unchanged(path)
        if channels == 1 and image.ndim == 3 and image.shape[2] in (3, 4):
            if image.dtype == np.uint16:  # which the other way would reduce to 8 bits
                image = cv2.cvtColor(image[..., :3], cv2.COLOR_RGB2GRAY)
            else:
                image = mmcv.imread(path, flag='grayscale')
    if image is None:
        raise ValueError('it cannot be read')
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[2] != channels or 0 in image.shape:
        raise ValueError(f'its shape is {image.shape}, and {channels} channels were expected')
    return to_network_depth(image, channels, bit_depth)


def _read_unchanged(path: str) -> np.ndarray:
    is_read, pages = cv2.imreadmulti(path, flags=cv2.IMREAD_UNCHANGED)
    if not is_read:
        raise ValueError('it cannot be read')
    colors = {3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}
    pages = [
        cv2.cvtColor(page, colors[page.shape[2]])
        if page.ndim == 3 and page.shape[2] in colors
        else page
        for page in pages
    ]
    return pages[0] if len(pages) == 1 else np.dstack(pages)


@TRANSFORMS.register_module()
class LoadChannels:
    """Reads an image of 1 to 16 channels; takes the place of mmcv's ``LoadImageFromFile``.

    Args:
        channels (int): How many channels the network has. Defaults to 3.
        skip_unreadable (bool): Whether a file that cannot be read is named in a warning and
            skipped. Defaults to False: the run stops.
        bit_depth (int): As for :func:`read_channels`. Defaults to 16.
    """

    def __init__(
        self, channels: int = 3, skip_unreadable: bool = False, bit_depth: int = 16
    ) -> None:
        if not 1 <= channels <= MAX_CHANNELS:
            raise ValueError(f'channels must be in 1...{MAX_CHANNELS}, not {channels}')
        self.channels = channels
        self.skip_unreadable = skip_unreadable
        self.bit_depth = check_bit_depth(bit_depth)
        self.named: set[str] = set()

    def __call__(self, data: dict) -> dict | None:
        """Add ``img``, an array (height, width, channels), and its size."""
        path = data['img_path']
        try:
            image = read_channels(path, self.channels, self.bit_depth)
        except Exception as error:  # a damaged file can raise anything
            if not self.skip_unreadable:
                raise
            if path not in self.named:
                text = f'{Path(path).absolute()} is skipped: {error}.'
                print_log(text, 'current', WARNING)
                self.named.add(path)
            return None
        if 'crop' in data:
            left, top, right, low = data['crop']
            image = image[top:low, left:right]
        size = image.shape[:2]
        return {**data, 'img': image, 'img_shape': size, 'ori_shape': size}


@TRANSFORMS.register_module()
class ScaleTo8Bit:
    """Scales 16-bit images to 8 bits; follows ``LoadImageFromFile`` with ``color_type=3``.

    The commands read images in the same way if the config has this step, and exported files say so.

    Args:
        bit_depth (int): How many bits the values have, 8 to 16: with 12, values of 0 to 4095 become
            0 to 255. Larger values become 255.
    """

    def __init__(self, bit_depth: int) -> None:
        self.bit_depth = check_bit_depth(bit_depth)

    def __call__(self, data: dict) -> dict:
        """Scale ``img``; images of 8 bits stay as they are."""
        return {**data, 'img': to_8_bit(data['img'], self.bit_depth)}
