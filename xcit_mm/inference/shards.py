"""Records what an inference has done, in one file per process or in those that Ray writes.

The same command continues from these files after an interruption.
"""

import functools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FOLDER, JOB = 'shards', 'job.json'
# How a complete line starts and ends, so that lines need not be decoded to know what is done.
LINE = re.compile(rb'\{"number": (\d+)(, "skipped": )?.*\}\n', re.DOTALL)
# How many lines are read from one file before the next one is opened.
BLOCK = 256


@dataclass(frozen=True)
class Shard:
    """A share of the inputs: every ``count``-th one, from ``index`` on.

    Args:
        index (int): From 0 to ``count - 1``. Defaults to 0.
        count (int): Number of shares. Defaults to 1, for everything.
    """

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f'{self.index + 1}/{self.count}'

    @property
    def name(self) -> str:
        """The name of its file."""
        return f'{self.index + 1:04}_of_{self.count:04}.jsonl'


EVERYTHING = Shard()


@dataclass
class InferenceJob:
    """Describes the work that all processes of an inference share.

    Args:
        key (str): Identifies the inputs, the weights and the settings.
        task (str): ``detection`` or ``segmentation``.
        inputs (int): How many there are.
        images (int): How many of them are images.
        categories (list[dict]): COCO's entry of each class.
        meaning (str): Where the ids come from, in a sentence.
        annotated (bool): Whether they come from an annotation file.
        shares (int): How many shards there are; 0 if Ray shares the inputs. Defaults to 1.
    """

    key: str
    task: str
    inputs: int
    images: int
    categories: list[dict[str, Any]]
    meaning: str
    annotated: bool
    shares: int = 1

    @property
    def has_detections(self) -> bool:
        """Return whether it ends in a file of detections; a video gives only pictures."""
        return self.task == 'detection' and self.images > 0


def is_unfinished(out_dir: Path) -> bool:
    """Return whether a folder has shards, which are deleted at the end."""
    return (out_dir / FOLDER / JOB).exists()


def delete_shards(out_dir: Path) -> None:
    """Delete the records of what was done."""
    shutil.rmtree(out_dir / FOLDER, ignore_errors=True)


def start_job(out_dir: Path, job: InferenceJob, writer: str) -> None:
    """Write what the shards of a folder are part of.

    Args:
        out_dir (Path): The folder for results.
        job (InferenceJob): The whole work.
        writer (str): A name that no other process writes under.

    Raises:
        UserError: If the folder has unfinished results of another job.
    """
    path = out_dir / FOLDER / JOB
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        unfinished = path.with_name(f'{writer}.{JOB}')
        unfinished.write_text(json.dumps(asdict(job)))
        unfinished.replace(path)
    if read_job(out_dir) != job:
        raise UserError(
            f'{out_dir} has unfinished results of other images, weights or settings, or of another '
            'number of shards. Repeat that command to finish them, start over with --force, or '
            'write elsewhere with --out-dir.'
        )


def read_job(out_dir: Path) -> InferenceJob:
    """Return the job that the shards of a folder are part of."""
    path = out_dir / FOLDER / JOB
    try:
        return InferenceJob(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise UserError(
            f'{out_dir} has no shards to merge: give the --out-dir of an infer command that '
            'ran in several processes.'
        ) from None
    except (TypeError, ValueError):
        raise UserError(f'{path} is damaged: delete {path.parent}, and start again.') from None


class Records:
    """Reads what was noted about inputs.

    Memory holds only where the notes are, 12 bytes for each input.

    Args:
        out_dir (Path): The folder for results.
        shard (Shard, optional): The share to read. Defaults to None: everything, from all files.
    """

    def __init__(self, out_dir: Path, shard: Shard | None = None) -> None:
        self.job, folder = read_job(out_dir), out_dir / FOLDER
        self.paths = sorted([*folder.glob('*.jsonl'), *folder.glob('*.parquet')])
        if shard is not None:
            self.paths = [folder / shard.name]
        self.share = (
            range(self.job.inputs)[shard.index :: shard.count] if shard else range(self.job.inputs)
        )
        # The file and the place of the note on each input that is done; -1 for others.
        self.file_index = np.full(self.job.inputs, -1, np.int32)
        self.offset = np.zeros(self.job.inputs, np.int64)
        self.skipped: dict[int, tuple[str, str]] = {}  # number -> file, reason
        for index, path in enumerate(self.paths):
            notes = _find_rows if path.suffix == '.parquet' else _find_lines
            for number, offset, skipped in notes(path):
                if skipped is None:
                    self.file_index[number], self.offset[number] = index, offset
                    self.skipped.pop(number, None)
                elif self.file_index[number] < 0:
                    self.skipped[number] = skipped

    def left(self) -> Iterator[int]:
        """Return the numbers of the inputs of the share that are neither done nor skipped."""
        return (n for n in self.share if self.file_index[n] < 0 and n not in self.skipped)

    def count_left(self) -> int:
        """Return how many inputs of the share are neither done nor skipped."""
        undone = self.file_index[self.share.start :: self.share.step] < 0
        return int(undone.sum()) - len(self.skipped)

    def list_skipped(self) -> list[tuple[str, str]]:
        """Return the files that could not be used, with the reason."""
        return [self.skipped[number] for number in sorted(self.skipped)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield what was found in the others, in the order of the inputs."""
        numbers = np.flatnonzero(self.file_index >= 0)
        for start in range(0, len(numbers), BLOCK):
            block = numbers[start : start + BLOCK]
            found: dict[int, dict[str, Any]] = {}
            for i in np.unique(self.file_index[block]):
                chosen = block[self.file_index[block] == i]
                read = _read_rows if self.paths[i].suffix == '.parquet' else _read_lines
                try:
                    records = read(self.paths[i], self.offset[chosen].tolist())
                    found.update(zip(chosen.tolist(), records, strict=True))
                except ValueError:
                    raise UserError(
                        f'{self.paths[i]} is damaged: delete it, and start the infer command again.'
                    ) from None
            yield from (found[number] for number in block.tolist())


# A number, where its note is and, if it was skipped, the file and the reason.
Note = tuple[int, int, tuple[str, str] | None]


def _find_lines(path: Path) -> Iterator[Note]:
    """Yield what a file of JSON lines has."""
    offset = 0
    with path.open('rb') as file:
        for line in file:
            if found := LINE.fullmatch(line):  # not what a kill left half-written
                record = json.loads(line) if found[2] else None
                skipped = (record['file'], record['skipped']) if record else None
                yield int(found[1]), offset, skipped
            offset += len(line)


def _read_lines(path: Path, offsets: Iterable[int]) -> Iterator[dict[str, Any]]:
    with path.open('rb') as file:
        for offset in offsets:
            file.seek(offset)
            yield json.loads(file.readline())


def _find_rows(path: Path) -> Iterator[Note]:
    """Yield what a Parquet file of Ray has; the place is the group of rows and the row in it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        return  # a kill left it half-written
    with file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, ['number', 'skipped', 'file']).to_pylist()
            for i, row in enumerate(rows):
                skipped = None if row['skipped'] is None else (row['file'], row['skipped'])
                yield row['number'], group << 32 | i, skipped


def _read_rows(path: Path, offsets: Iterable[int]) -> Iterator[dict[str, Any]]:
    from xcit_mm_runtime.ray_worker import drop_missing

    for offset in offsets:
        (row,) = _read_group(path, offset >> 32).slice(offset & 0xFFFFFFFF, 1).to_pylist()
        yield drop_missing(row)


@functools.lru_cache(maxsize=8)
def _read_group(path: Path, group: int) -> Any:
    """Return a group of rows; several workers of Ray write neighbors at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read_row_group(group)


@contextmanager
def open_journal(
    out_dir: Path, job: InferenceJob, shard: Shard = EVERYTHING, retry: bool = False
) -> Iterator['Journal']:
    """Open the journal of a process, which knows what this share has done before.

    Args:
        out_dir (Path): The folder for results.
        job (InferenceJob): The whole work.
        shard (Shard): The share of this process. Defaults to everything.
        retry (bool): Whether to try again what was skipped. Defaults to False.

    Raises:
        UserError: If the folder has unfinished results of another job, or if another process is
            working on the same share.
    """
    start_job(out_dir, job, shard.name)
    with (out_dir / FOLDER / shard.name).open('a+b') as file:
        _lock(file)
        file.seek(0)
        file.truncate(sum(len(line) for line in file if line.endswith(b'\n')))
        journal = Journal(file, out_dir, shard)
        if retry:
            journal.skipped.clear()
        yield journal


def _lock(file: IO[bytes]) -> None:
    """Refuse to write what another process is writing: the command may run twice by mistake."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f'Another process is writing {file.name}: two processes must not have the same share.'
        ) from None
    except OSError:
        pass  # a file system without locks


class Journal(Records):
    """Notes what a process does.

    Args:
        file (IO): Its file, open for appending.
        out_dir (Path): The folder for results.
        shard (Shard): The share of this process.
    """

    def __init__(self, file: IO[bytes], out_dir: Path, shard: Shard) -> None:
        super().__init__(out_dir, shard)
        self.file = file

    def add(self, number: int, record: dict[str, Any]) -> None:
        """Note what was found in one input."""
        self.offset[number] = self.file.seek(0, os.SEEK_END)
        self._write({'number': number, **record})
        self.file_index[number] = 0

    def skip(self, number: int, name: str, reason: str) -> None:
        """Note that an input cannot be used."""
        self._write({'number': number, 'skipped': reason, 'file': name})
        self.skipped[number] = (name, reason)

    def _write(self, content: dict[str, Any]) -> None:
        self.file.write(json.dumps(content).encode() + b'\n')
        self.file.flush()
