"""Records what an inference has done: one file of JSON lines per process, read as one.

The same command continues from these files after an interruption, with any number of processes.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from ..errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FOLDER = 'shards'
NAME = re.compile(r'(\d+)_of_(\d+)\.jsonl')
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

    def has(self, number: int) -> bool:
        """Return whether an input belongs to it."""
        return number % self.count == self.index

    def overlaps(self, other: 'Shard') -> bool:
        """Return whether an input can belong to both."""
        return (self.index - other.index) % math.gcd(self.count, other.count) == 0


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
    """

    key: str
    task: str
    inputs: int
    images: int
    categories: list[dict[str, Any]]
    meaning: str
    annotated: bool

    @property
    def has_detections(self) -> bool:
        """Return whether it ends in a file of detections; a video gives only pictures."""
        return self.task == 'detection' and self.images > 0


def shard_files(out_dir: Path) -> dict[Path, Shard]:
    """Return the files of all processes that have written to a folder, and their shares."""
    found = {path: NAME.fullmatch(path.name) for path in sorted((out_dir / FOLDER).glob('*'))}
    return {path: Shard(int(m[1]) - 1, int(m[2])) for path, m in found.items() if m}


def is_unfinished(out_dir: Path) -> bool:
    """Return whether a folder has shards, which are deleted at the end."""
    return bool(shard_files(out_dir))


def delete_shards(out_dir: Path) -> None:
    """Delete the records of what was done."""
    shutil.rmtree(out_dir / FOLDER, ignore_errors=True)


class Line(NamedTuple):
    """One line of a shard: an input that is done, or that cannot be used.

    Args:
        number (int): The input.
        is_skipped (bool): Whether it could not be used.
        offset (int): Where the line starts.
        content (bytes): The line.
    """

    number: int
    is_skipped: bool
    offset: int
    content: bytes


def read_lines(
    file: IO[bytes], job: InferenceJob | None = None
) -> tuple[InferenceJob | None, Iterator[Line]]:
    """Return the first line of a shard and the others, without what a kill left half-written.

    Args:
        file (IO): The shard.
        job (InferenceJob, optional): What it must be part of. Defaults to None, anything.

    Raises:
        UserError: If it is part of another job.
    """
    first = file.readline()
    if not first.endswith(b'\n'):  # its process is just starting, or was killed then
        return job, iter(())
    try:
        found = InferenceJob(**json.loads(first))
    except (TypeError, ValueError):
        raise UserError(f'{file.name} is damaged: delete it.') from None
    if job not in (None, found):
        raise UserError(
            f'{Path(file.name).parents[1]} has unfinished results of other images, weights or '
            'settings. Repeat that command to finish them, start over with --force, or write '
            'elsewhere with --out-dir.'
        )
    return found, _lines(file, len(first), found.inputs)


def _lines(file: IO[bytes], offset: int, inputs: int) -> Iterator[Line]:
    for content in file:
        found = LINE.fullmatch(content)
        if found and int(found[1]) < inputs:
            yield Line(int(found[1]), found[2] is not None, offset, content)
        offset += len(content)


@contextmanager
def open_journal(
    out_dir: Path, job: InferenceJob, shard: Shard = EVERYTHING, retry: bool = False
) -> Iterator['Journal']:
    """Open the journal of a process, which knows what all processes have done before.

    Args:
        out_dir (Path): The folder for results.
        job (InferenceJob): The whole work.
        shard (Shard): The share of this process. Defaults to everything.
        retry (bool): Whether to try again what was skipped. Defaults to False.

    Raises:
        UserError: If the folder has unfinished results of another job, or if another process is
            working on the same share.
    """
    path = out_dir / FOLDER / shard.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('a+b') as file:
        _lock(file)
        file.seek(0)
        file.truncate(sum(len(line) for line in file if line.endswith(b'\n')))
        journal = Journal(file, job, shard)
        for path, other in shard_files(out_dir).items():
            with path.open('rb') as opened:
                _, lines = read_lines(opened, job)
                if other.overlaps(shard):
                    journal.read(lines)
        if retry:
            journal.forget_skipped()
        yield journal


def _lock(file: IO[bytes]) -> None:
    """Keep other processes from writing to a file; the lock ends with this process."""
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


class Journal:
    """Notes what a process does.

    Args:
        file (IO): Its file, open for appending.
        job (InferenceJob): The whole work.
        shard (Shard): The share of this process.
    """

    def __init__(self, file: IO[bytes], job: InferenceJob, shard: Shard) -> None:
        self.file, self.shard = file, shard
        self.done = bytearray(job.inputs)  # a byte for each input, also for those of others
        self.skipped: dict[int, tuple[str, str]] = {}  # number -> file, reason
        if not file.seek(0, os.SEEK_END):
            self._write(asdict(job))

    def read(self, lines: Iterable[Line]) -> None:
        """Note what was done before; where one process was successful, that counts."""
        for number, is_skipped, _, content in lines:
            if not self.shard.has(number):
                continue
            if not is_skipped:
                self.skipped.pop(number, None)
            elif not self.done[number]:
                record = json.loads(content)
                self.skipped[number] = (record['file'], record['skipped'])
            self.done[number] = True

    def forget_skipped(self) -> None:
        """Let what was skipped be tried again."""
        for number in self.skipped:
            self.done[number] = False
        self.skipped.clear()

    def count(self) -> int:
        """Return how many inputs are in this share."""
        return len(range(self.shard.index, len(self.done), self.shard.count))

    def count_left(self) -> int:
        """Return how many of them are not done."""
        return self.done[self.shard.index :: self.shard.count].count(0)

    def left(self) -> Iterator[int]:
        """Return the numbers of those that are not done."""
        share = range(self.shard.index, len(self.done), self.shard.count)
        return (number for number in share if not self.done[number])

    def add(self, number: int, record: dict[str, Any]) -> None:
        """Note what was found in one input."""
        self._write({'number': number, **record})
        self.done[number] = True

    def skip(self, number: int, name: str, reason: str) -> None:
        """Note that an input cannot be used."""
        self._write({'number': number, 'skipped': reason, 'file': name})
        self.done[number] = True
        self.skipped[number] = (name, reason)

    def _write(self, content: dict[str, Any]) -> None:
        self.file.write(json.dumps(content).encode() + b'\n')
        self.file.flush()


class Records:
    """Reads what all processes have noted, in the order of the inputs.

    Memory holds only where the lines are, 13 bytes for each input.

    Args:
        out_dir (Path): The folder for results.

    Raises:
        UserError: If it has no shards, or those of several jobs.
    """

    def __init__(self, out_dir: Path) -> None:
        self.paths = list(shard_files(out_dir))
        job = None
        for path in self.paths:
            with path.open('rb') as file:
                job, _ = read_lines(file, job)
        if job is None:
            raise UserError(
                f'{out_dir} has no shards to merge: give the --out-dir of an infer command that '
                'ran in several processes.'
            )
        self.job = job
        self.file = np.full(job.inputs, -1, np.int32)
        self.offset = np.zeros(job.inputs, np.int64)
        self.is_skipped = np.zeros(job.inputs, bool)
        for i, path in enumerate(self.paths):
            self._find_lines(i, path)

    def _find_lines(self, i: int, path: Path) -> None:
        with path.open('rb') as file:
            for number, is_skipped, offset, _ in read_lines(file, self.job)[1]:
                if self.file[number] < 0 or self.is_skipped[number]:
                    self.file[number], self.offset[number] = i, offset
                    self.is_skipped[number] = is_skipped

    @property
    def missing(self) -> int:
        """How many inputs no process has done."""
        return int((self.file < 0).sum())

    def skipped(self) -> Iterator[tuple[str, str]]:
        """Return the files that could not be used, with the reason."""
        records = self._read(np.flatnonzero(self.is_skipped))
        return ((record['file'], record['skipped']) for record in records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield what was found in the others."""
        return self._read(np.flatnonzero((self.file >= 0) & ~self.is_skipped))

    def _read(self, numbers: np.ndarray) -> Iterator[dict[str, Any]]:
        for start in range(0, len(numbers), BLOCK):
            block = numbers[start : start + BLOCK]
            lines = {}
            for i in np.unique(self.file[block]):
                with self.paths[i].open('rb') as file:
                    for number in block[self.file[block] == i]:
                        file.seek(self.offset[number])
                        lines[number] = file.readline()
            for number in block:
                try:
                    yield json.loads(lines[number])
                except ValueError:
                    raise UserError(
                        f'{self.paths[self.file[number]]} is damaged: delete it, and start the '
                        'infer command again.'
                    ) from None
