"""What the processes of a Ray cluster do in ``xcit-mm infer --ray``: rows in, rows out.

They need ``[ray]``, and neither PyTorch nor OpenMMLab.
"""

import functools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem
from ray import get_runtime_context
from ray.data.block import BlockAccessor
from ray.data.datasource import BlockBasedFileDatasink

from .errors import ImageError
from .inputs import decode
from .model import load
from .predict import FilePredictor, Result, Skipped

IMAGE = {'id': pa.int64(), 'file_name': pa.string(), 'height': pa.int64(), 'width': pa.int64()}
MASK = {'size': pa.list_(pa.int64()), 'counts': pa.string()}
ANNOTATION = {
    'image_id': pa.int64(),
    'category_id': pa.int64(),
    'bbox': pa.list_(pa.float64()),
    'score': pa.float64(),
    'segmentation': pa.struct(MASK),
}
# One row per image: what was found, or why it was skipped.
RESULTS = pa.schema(
    {
        'number': pa.int64(),
        'skipped': pa.string(),
        'file': pa.string(),
        'image': pa.struct(IMAGE),
        'annotations': pa.list_(pa.struct(ANNOTATION)),
    }
)
# What is needed to make such a row. An image is a file, or a row of a Parquet file.
INPUTS = pa.schema(
    {
        'number': pa.int64(),
        'file': pa.string(),
        'name': pa.string(),
        'image_id': pa.int64(),
        'table': pa.string(),
        'group': pa.int64(),
        'row': pa.int64(),
    }
)


# How many processes may die of an image, or while they happen to process it.
MAX_DEATHS = 3


def drop_missing(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of :data:`RESULTS` without what it does not have, as a line of JSON has it."""
    annotations = row['annotations']
    if annotations is not None:
        row['annotations'] = [_without_none(annotation) for annotation in annotations]
    return _without_none(row)


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


class JsonLines(BlockBasedFileDatasink):
    """Writes rows as JSON, one per line; Ray's own writer rounds numbers."""

    def write_block_to_file(self, block: BlockAccessor, file: pa.NativeFile) -> None:
        for row in block.to_arrow().to_pylist():
            file.write(json.dumps(drop_missing(row)).encode() + b'\n')


class Attempts:
    """Counts how many times images were the last that this process did before it died.

    Ray starts it again, under the same id, with the same images. Without a limit, an image that
    takes all memory would be tried forever.

    Args:
        folder (Path): Where to note them.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f'{get_runtime_context().get_actor_id()}.attempts'
        self.deaths = Counter(self.path.read_text().split() if self.path.exists() else [])

    @contextmanager
    def note(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Count images as fatal unless this ends."""
        with self.path.open('a') as file:
            before = file.tell()
            file.write(' '.join([*(str(row['number']) for row in rows), '']))
            file.flush()
            yield
            file.truncate(before)

    def __getitem__(self, row: Mapping[str, Any]) -> int:
        return self.deaths[str(row['number'])]


class ImageWorker:
    """Predicts for images; one process of the cluster has one.

    Args:
        model (str): An exported model.
        threads (int): How many processors to use.
        device (str): Where the model runs.
        batch_size (int): The most images in one run of the model.
        folder (str): What relative paths are relative to.
        notes (Path): Folder for notes on images that kill their process.
        **settings (Any): Those of :class:`.predict.FilePredictor`.
    """

    def __init__(
        self,
        model: str,
        threads: int,
        device: str,
        batch_size: int,
        folder: str,
        notes: Path,
        **settings: Any,
    ) -> None:
        self.model, self.attempts = load(model, threads, device), Attempts(notes)
        self.batch_size, self.folder = batch_size, folder
        self.files = FilePredictor(self.model, **settings)

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield :data:`RESULTS` for :data:`INPUTS`."""
        rows = table.to_pylist()
        # To find out which image killed the process, they are tried one by one.
        size = 1 if any(self.attempts[row] for row in rows) else self.batch_size
        for start in range(0, len(rows), size):
            chosen = rows[start : start + size]
            with self.attempts.note(chosen):
                found = self._predict(chosen)
            yield pa.Table.from_pylist(found, RESULTS)

    def _predict(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        images = [self._read(row) for row in rows]
        shapes: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(images):
            if isinstance(image, np.ndarray):
                shapes.setdefault(image.shape, []).append(i)
        results: dict[int, Result] = {}
        for group in shapes.values():
            if len(group) > 1:
                try:
                    found = self.model.predict_batch([images[i] for i in group])  # type: ignore[misc]
                except (ImageError, MemoryError):
                    continue  # one by one: others may be possible
                results.update(zip(group, found, strict=True))
        return [
            self._record(row, image, results.get(i))
            for i, (row, image) in enumerate(zip(rows, images, strict=True))
        ]

    def _record(
        self, row: dict[str, Any], image: np.ndarray | Skipped, result: Result | None
    ) -> dict[str, Any]:
        named = {'number': row['number'], 'file': row['file']}
        try:
            if isinstance(image, Skipped):
                raise image
            result = self.files.predict(image) if result is None else result
            record = self.files.write(image, result, row['file'], row['name'], row['image_id'])
        except Skipped as reason:
            return {**named, 'skipped': str(reason)}
        return {**named, **record}

    def _read(self, row: dict[str, Any]) -> np.ndarray | Skipped:
        if row['image_id'] is None:
            return Skipped('not in the annotation file')
        if self.attempts[row] >= MAX_DEATHS:
            return Skipped('its process was killed each time')
        try:
            if row['table'] is None:
                content = read_bytes(row['file'], self.folder)
            else:
                table = os.path.join(self.folder, row['table'])
                content = read_column(table, row['group'])[row['row']].as_py() or b''
        except OSError:
            return Skipped('cannot be read')
        image = decode(np.frombuffer(content, np.uint8), self.model.bit_depth)
        return Skipped('cannot be read') if image is None else image


def read_bytes(path: str, folder: str) -> bytes:
    """Return the content of a file.

    Args:
        path (str): A path, or the address of a file system that pyarrow knows, such as ``s3://``.
        folder (str): What a relative path is relative to.
    """
    if '://' not in path:
        return Path(folder, path).read_bytes()
    system, name = FileSystem.from_uri(path)
    with system.open_input_stream(name) as stream:
        return stream.read()


def open_parquet(path: str) -> pq.ParquetFile:
    """Open a Parquet file at a path, or at an address as for :func:`read_bytes`."""
    if '://' not in path:
        return pq.ParquetFile(path)
    system, name = FileSystem.from_uri(path)
    return pq.ParquetFile(name, filesystem=system)


def find_column(file: pq.ParquetFile, name: str) -> str | None:
    """Return the path of a column that has this name, on its own or in a struct like ``image``."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    return next((path for path in paths if path.rpartition('.')[2] == name), None)


@functools.lru_cache(maxsize=1)
def read_column(path: str, group: int) -> pa.ChunkedArray:
    """Return the bytes of the images in a row group of a Parquet file."""
    with open_parquet(path) as file:
        column = find_column(file, 'bytes')
        # Nested columns have their names in front.
        return file.read_row_group(group, [column]).flatten().column(column)
