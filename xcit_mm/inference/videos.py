"""Draws predictions in videos and in what cameras record."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from rich.progress import Progress

from xcit_mm_runtime.inputs import MediaSource
from xcit_mm_runtime.predict import FilePredictor, Skipped

from ..errors import UserError

# For cameras and files that do not state theirs.
DEFAULT_FPS = 25.0


def draw_video(predict: FilePredictor, source: MediaSource, name: str, progress: Progress) -> None:
    """Write a video with predictions drawn; Ctrl-C ends the video of a camera.

    Args:
        predict (FilePredictor): The model, and the folder for results.
        source (MediaSource): A file or a camera.
        name (str): Name of the new video, without its ending.
        progress (Progress): Shows how far it is.

    Raises:
        Skipped: If it cannot be read.
    """
    video = cv2.VideoCapture(source)
    if not video.isOpened():
        raise Skipped('cannot be read')
    is_camera = isinstance(source, int)
    length = None if is_camera else video.get(cv2.CAP_PROP_FRAME_COUNT)
    fps = video.get(cv2.CAP_PROP_FPS) or DEFAULT_FPS
    frames = progress.track(read_frames(video), total=length, description=name)
    with write_video(predict.out_dir / 'vis' / f'{name}.mp4', fps) as write:
        try:
            for frame in frames:
                write(predict.draw(frame, predict.predict(frame), is_frame=True))
        except KeyboardInterrupt:
            if not is_camera:
                raise


def read_frames(video: cv2.VideoCapture) -> Iterator[np.ndarray]:
    """Yield the frames of a video as BGR."""
    try:
        while (frame := video.read()[1]) is not None:
            yield frame
    finally:
        video.release()


@contextmanager
def write_video(path: Path, fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Write an MP4, which gets its name only when it is complete.

    Args:
        path (Path): The file.
        fps (float): Frames per second.

    Yields:
        callable: Adds a frame; all are as large as the first one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # OpenCV chooses the format by the ending.
    unfinished = path.with_name(f'unfinished_{path.name}')
    writer, count = cv2.VideoWriter(), 0

    def write(frame: np.ndarray) -> None:
        nonlocal count
        if not count:
            size = (frame.shape[1], frame.shape[0])
            writer.open(str(unfinished), cv2.VideoWriter.fourcc(*'mp4v'), fps, size)
        writer.write(frame)
        count += 1

    try:
        yield write
        writer.release()
        # OpenCV does not report errors.
        if cv2.VideoCapture(str(unfinished)).get(cv2.CAP_PROP_FRAME_COUNT) != count:
            raise UserError(f'{path} could not be written. Is the disk full?')
        unfinished.replace(path)
    finally:
        writer.release()
        unfinished.unlink(missing_ok=True)
