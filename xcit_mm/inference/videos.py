"""Reads videos and cameras, and writes videos."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import numpy as np

from xcit_mm_runtime.inputs import Source

from ..errors import UserError

# For cameras and files that do not state theirs.
DEFAULT_FPS = 25.0


class Video(NamedTuple):
    """What is known about a video.

    Args:
        frames (Iterator): Its frames as BGR.
        length (int, optional): How many; None for a camera.
        fps (float): Frames per second.
        size (tuple[int, int]): Width and height.
    """

    frames: Iterator[np.ndarray]
    length: int | None
    fps: float
    size: tuple[int, int]


def open_video(source: Source) -> Video | None:
    """Open a file or a camera; None if that is impossible."""
    if isinstance(source, str):
        reader = mmcv.VideoReader(source)
        video = Video(iter(reader), reader.frame_cnt, reader.fps or DEFAULT_FPS, reader.resolution)
        return video if reader.opened else None
    camera = cv2.VideoCapture(source)
    if not camera.isOpened():
        return None
    size = tuple(int(camera.get(p)) for p in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    fps = camera.get(cv2.CAP_PROP_FPS) or DEFAULT_FPS
    return Video(_frames(camera), None, fps, (size[0], size[1]))


def _frames(camera: cv2.VideoCapture) -> Iterator[np.ndarray]:
    try:
        while True:
            is_read, frame = camera.read()
            if not is_read:
                return
            yield frame
    finally:
        camera.release()


@contextmanager
def video_writer(path: Path, video: Video) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that adds a frame to a new MP4, which gets its name only when it is complete.

    Args:
        path (Path): The file.
        video (Video): Gives the frame rate. All frames are as large as the first one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # OpenCV chooses the format by the ending.
    unfinished = path.with_name(f'unfinished_{path.name}')
    writer, count = cv2.VideoWriter(), 0

    def write(frame: np.ndarray) -> None:
        nonlocal count
        if not count:
            size = (frame.shape[1], frame.shape[0])
            writer.open(str(unfinished), cv2.VideoWriter.fourcc(*'mp4v'), video.fps, size)
        writer.write(frame)
        count += 1

    try:
        yield write
        writer.release()
        # OpenCV does not report errors.
        if count and mmcv.VideoReader(str(unfinished)).frame_cnt != count:
            raise UserError(f'{path} could not be written. Is the disk full?')
        unfinished.replace(path)
    finally:
        writer.release()
        unfinished.unlink(missing_ok=True)
