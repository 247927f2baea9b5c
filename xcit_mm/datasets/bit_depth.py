"""Recognizes images of 10, 12 or 14 bits in 16-bit files."""

import functools
from collections.abc import Iterable
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log

from xcit_mm_runtime.inputs import bits_of, decode_any_depth, unused_bits

from ..configs import bit_depth
from .check.run import in_threads

SUFFIXES = ('.png', '.tif', '.tiff', '.ppm')
# How many images of a dataset are looked at before a run.
LOOKED_AT = 8


def find_bit_depth(paths: Iterable[str | Path], workers: int) -> int | None:
    """How many bits the values of 16-bit images have; None if there are no such images.

    Args:
        paths (Iterable): The images.
        workers (int): Threads that decode them.
    """
    jobs = [functools.partial(maximum, path) for path in paths]
    found = [value for value in in_threads(jobs, workers) if value is not None]
    return bits_of(max(found)) if found else None


def maximum(path: str | Path) -> int | None:
    """The largest value of a 16-bit image; None for other images and damaged ones."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return None
    with path.open('rb') as file:
        content = file.read(25)
        if content.startswith(b'\x89PNG') and content[24:] != b'\x10':
            return None  # the header says that it has fewer bits
        content += file.read()
    image = decode_any_depth(np.frombuffer(content, np.uint8))
    return int(image.max()) if image is not None and image.dtype == np.uint16 else None


def warn_of_unused_bits(dataset: Any, cfg: Config) -> None:
    """Warn if images seem to have fewer bits than their files, and the config does not say so.

    Args:
        dataset (BaseDataset): The dataset; some of its images are looked at.
        cfg (Config): The config.
    """
    if bit_depth(cfg) is not None or not hasattr(dataset, 'get_data_info'):
        return
    indices = range(0, len(dataset), max(1, len(dataset) // LOOKED_AT))
    paths = [dataset.get_data_info(index).get('img_path') for index in indices]
    found = [value for path in paths if path and (value := maximum(path)) is not None]
    if found and (text := unused_bits(max(found))):
        print_log(text, 'current', WARNING)
