"""Records what an inference has done: one file of JSON lines per process, read as one.

The same command continues from these files after an interruption, with any number of processes.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
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

    def numbers(self, inputs: int) -> range:
        """Return the numbers of its inputs, of so many."""
        return range(self.index, inputs, self.count)

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


def read_job(path: Path, expected: InferenceJob | None = None) -> InferenceJob | None:
    """Return the job that a shard is part of, by its first line.

    Args:
        path (Path): The shard.
        expected (InferenceJob, optional): What it must be part of; returned if the process of the
            shard is just starting, or was killed then. Defaults to None, anything.

    Raises:
        UserError: If it is part of another job.
    """
    with path.open('rb') as file:
        first = file.readline()
    if not first.endswith(b'\n'):
        return expected
    try:
        found = InferenceJob(**json.loads(first))
    except (TypeError, ValueError):
        raise UserError(f'{path} is damaged: delete it.') from None
    if expected not in (None, found):
        raise UserError(
            f'{path.parents[1]} has unfinished results of other images, weights or settings. '
            'Repeat that command to finish them, start over with --force, or write elsewhere with '
            '--out-dir.'
        )
    return found


class Records:
    """Reads what processes have noted about the inputs of a share.

    Memory holds only where the lines are, 12 bytes for each input.

    Args:
        out_dir (Path): The folder for results.
        job (InferenceJob, optional): The whole work. Defaults to None, that of the shards.
        shard (Shard): The share. Defaults to everything.

    Raises:
        UserError: If there are no shards, or those of several jobs.
    """

    def __init__(
        self, out_dir: Path, job: InferenceJob | None = None, shard: Shard = EVERYTHING
    ) -> None:
        files = shard_files(out_dir)
        for path in files:
            job = read_job(path, job)
        if job is None:
            raise UserError(
                f'{out_dir} has no shards to merge: give the --out-dir of an infer command that '
                'ran in several processes.'
            )
        self.job, self.paths = job, list(files)
        self.share = shard.numbers(job.inputs)
        # The file and the place of the line of each input that is done; -1 for others.
        self.file_index = np.full(job.inputs, -1, np.int32)
        self.offset = np.zeros(job.inputs, np.int64)
        self.skipped: dict[int, tuple[str, str]] = {}  # number -> file, reason
        for index, (path, other) in enumerate(files.items()):
            if other.overlaps(shard):
                self._find_lines(index, path)

    def _find_lines(self, index: int, path: Path) -> None:
        """Note what a process did; where one process was successful, that counts."""
        with path.open('rb') as file:
            offset = len(file.readline())
            for line in file:
                found = LINE.fullmatch(line)  # not what a kill left half-written
                number = int(found[1]) if found else -1
                if found and number in self.share:
                    if not found[2]:
                        self.file_index[number], self.offset[number] = index, offset
                        self.skipped.pop(number, None)
                    elif self.file_index[number] < 0:
                        record = json.loads(line)
                        self.skipped[number] = (record['file'], record['skipped'])
                offset += len(line)

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
            lines = {}
            for i in np.unique(self.file_index[block]):
                with self.paths[i].open('rb') as file:
                    for number in block[self.file_index[block] == i]:
                        file.seek(self.offset[number])
                        lines[number] = file.readline()
            for number in block:
                try:
                    yield json.loads(lines[number])
                except ValueError:
                    raise UserError(
                        f'{self.paths[self.file_index[number]]} is damaged: delete it, and start '
                        'the infer command again.'
                    ) from None


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
        journal = Journal(file, out_dir, job, shard)
        if retry:
            journal.skipped.clear()
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


class Journal(Records):
    """Notes what a process does.

    Args:
        file (IO): Its file, open for appending.
        out_dir (Path): The folder for results.
        job (InferenceJob): The whole work.
        shard (Shard): The share of this process.
    """

    def __init__(self, file: IO[bytes], out_dir: Path, job: InferenceJob, shard: Shard) -> None:
        self.file = file
        if not file.seek(0, os.SEEK_END):
            self._write(asdict(job))
        super().__init__(out_dir, job, shard)
        self.own_index = self.paths.index(Path(file.name))

    def left(self) -> Iterator[int]:
        """Return the numbers of the inputs of the share that are neither done nor skipped."""
        return (n for n in self.share if self.file_index[n] < 0 and n not in self.skipped)

    def add(self, number: int, record: dict[str, Any]) -> None:
        """Note what was found in one input."""
        self.offset[number] = self.file.seek(0, os.SEEK_END)
        self._write({'number': number, **record})
        self.file_index[number] = self.own_index

    def skip(self, number: int, name: str, reason: str) -> None:
        """Note that an input cannot be used."""
        self._write({'number': number, 'skipped': reason, 'file': name})
        self.skipped[number] = (name, reason)

    def _write(self, content: dict[str, Any]) -> None:
        self.file.write(json.dumps(content).encode() + b'\n')
        self.file.flush()
