"""What an inference has done so far, so that the same command continues after an interruption."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import UserError

FILE = 'unfinished.jsonl'


@contextmanager
def open_journal(out_dir: Path, job: str) -> Iterator['Journal']:
    """The journal of a folder; it is deleted when the work is done.

    Args:
        out_dir (Path): The folder.
        job (str): Identifies the work: the images, the weights and the settings.

    Raises:
        UserError: If the folder has the journal of other work.
    """
    path = out_dir / FILE
    with path.open('a+b') as file:
        journal = Journal(file, job)
        yield journal
    path.unlink()


class Journal:
    """A file with one line of JSON for the job, and one for each image that is done.

    Args:
        file (IO): The file, open for reading and appending.
        job (str): See :func:`open_journal`.
    """

    def __init__(self, file: IO[bytes], job: str) -> None:
        self.file = file
        # A killed process can leave half a line.
        file.seek(0)
        file.truncate(sum(len(line) for line in file if line.endswith(b'\n')))
        file.seek(0)
        first = file.readline()
        if first and json.loads(first) != job:
            raise UserError(
                f'{Path(file.name).parent} has unfinished results of other images, weights or '
                'settings. Repeat that command to finish them, start over with --force, or write '
                'elsewhere with --out-dir.'
            )
        self.done = {record['file'] for record in self.records()}
        if not first:
            self._write(job)

    def add(self, record: dict[str, Any]) -> None:
        """Add what was found in one image; ``file`` is its name."""
        self._write(record)
        self.done.add(record['file'])

    def records(self) -> Iterator[dict[str, Any]]:
        """What was added, one record at a time."""
        self.file.seek(0)
        self.file.readline()
        for line in self.file:
            yield json.loads(line)

    def _write(self, content: Any) -> None:
        self.file.write(json.dumps(content).encode() + b'\n')
        self.file.flush()
