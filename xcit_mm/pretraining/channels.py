"""Reads images of 1 to 16 channels, for pre-training, detection and segmentation alike."""

from logging import WARNING
from pathlib import Path

import cv2
import mmcv
import numpy as np
from mmengine.logging import print_log
from mmengine.registry import TRANSFORMS

MAX_CHANNELS = 16


def read_channels(path: str, channels: int) -> np.ndarray:
    """Read an image as (height, width, channels) in the type of the file, colours as RGB.

    With 3 channels, every image is read as infer reads it. With 1, colours become grey. Other
    numbers must be the file's: those of its pixels, of the pages of a TIFF, or of an array (.npy).

    Args:
        path (str): The file.
        channels (int): How many channels to read.

    Raises:
        ValueError: If the file cannot be read, or has another number of channels.
    """
    if path.lower().endswith('.npy'):
        image = np.load(path, allow_pickle=False)
    elif channels == 3:
        bgr = mmcv.imread(path)  # None if damaged, where channel_order='rgb' would fail in OpenCV
        image = None if bgr is None else cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
    else:
        image = _read_unchanged(path)
        if channels == 1 and image.ndim == 3 and image.shape[2] in (3, 4):
            image = mmcv.imread(path, flag='grayscale')
    if image is None:
        raise ValueError('it cannot be read')
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[2] != channels or 0 in image.shape:
        raise ValueError(f'its shape is {image.shape}, and {channels} channels were expected')
    return image


def _read_unchanged(path: str) -> np.ndarray:
    is_read, pages = cv2.imreadmulti(path, flags=cv2.IMREAD_UNCHANGED)
    if not is_read:
        raise ValueError('it cannot be read')
    colours = {3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}
    pages = [
        cv2.cvtColor(page, colours[page.shape[2]])
        if page.ndim == 3 and page.shape[2] in colours
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
    """

    def __init__(self, channels: int = 3, skip_unreadable: bool = False) -> None:
        if not 1 <= channels <= MAX_CHANNELS:
            raise ValueError(f'channels must be in 1...{MAX_CHANNELS}, not {channels}')
        self.channels = channels
        self.skip_unreadable = skip_unreadable
        self.named: set[str] = set()

    def __call__(self, data: dict) -> dict | None:
        """Add ``img``, an array (height, width, channels), and its size."""
        path = data['img_path']
        try:
            image = read_channels(path, self.channels)
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
