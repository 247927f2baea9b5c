"""An index of images on disk: memory-mapped arrays and JSON, nothing pickled.

Images are added in shards. The JSON with the names of a shard is written last and makes it count:
an interrupted index is complete up to its last shard.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from xcit_mm_runtime import read_image
from xcit_mm_runtime.files import replacing, write_atomically
from xcit_mm_runtime.progress import track

from ..errors import UserError
from .descriptors import Describer, Settings, Words, similarity
from .learning import learn
from .network import Network

SHARD = 512


class Index:
    """The descriptors of images, in a folder that :meth:`create` has made."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        self.names: list[str] = []
        self.arrays: list[list[str]] = []  # names of those of each shard
        try:
            content = self._read('index')
            self.settings, self.checksum = Settings(**content['settings']), content['checksum']
            # Small, and read for every image.
            self.learned = {name: np.array(self._load(name)) for name in content['learned']}
            while (self.folder / f'{len(self.arrays):05d}.json').is_file():
                self._add_shard()
        except FileNotFoundError as error:
            raise UserError(
                f'{folder} is not an index of images: {error.filename} is missing. "xcit-mm '
                'retrieve index" makes one.'
            ) from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f'The index {folder} is damaged: {error}.') from None

    @classmethod
    def create(cls, folder: str | os.PathLike, describer: Describer) -> 'Index':
        """Make an empty index for what a describer returns."""
        if any(Path(folder).glob('[0-9][0-9][0-9][0-9][0-9].json')):
            raise UserError(f'{folder} has parts of another index: choose another --index.')
        for name, array in describer.learned.items():
            _save(Path(folder, f'{name}.npy'), array)
        content = {
            'settings': asdict(describer.settings),
            'checksum': describer.network.checksum(),
            'learned': list(describer.learned),
        }
        write_atomically(Path(folder, 'index.json'), json.dumps(content, indent=1))
        return cls(folder)

    def describer(self, device: str = 'cpu') -> Describer:
        """Return what describes images for this index; raise if the weights have changed."""
        settings = self.settings
        network = Network(settings.checkpoint, settings.config, settings.model, device)
        if network.checksum() != self.checksum:
            raise UserError(
                f'The index {self.folder} was made with other weights than those that '
                f'{settings.checkpoint or settings.model} has now. Make a new index.'
            )
        return Describer(network, settings, self.learned)

    def add(self, images: Sequence[str], descriptors: Sequence[Any]) -> None:
        """Add a shard: the paths of images, and what describes them."""
        if self.settings.descriptor == 'asmk':
            arrays = _invert(descriptors, self.settings.codebook)
        else:
            arrays = {'vectors': np.stack(descriptors).astype(np.float16)}
        start = self.folder / f'{len(self.arrays):05d}'
        for name, array in arrays.items():
            _save(Path(f'{start}_{name}.npy'), array)
        content = {'images': list(images), 'arrays': list(arrays)}
        write_atomically(Path(f'{start}.json'), json.dumps(content))
        self._add_shard()

    @property
    def shards(self) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of one shard after another; each keeps a file open as long as it is used."""
        for number, names in enumerate(self.arrays):
            yield {name: self._load(f'{number:05d}_{name}') for name in names}

    def scores(self, queries: Sequence[Any]) -> np.ndarray:
        """Return how similar all images are to queries, as these are described: (queries, n)."""
        is_asmk = self.settings.descriptor == 'asmk'
        compare = self._compare_words if is_asmk else self._compare_vectors
        scores = [compare(shard, queries) for shard in self.shards]
        return np.concatenate([np.zeros((len(queries), 0), np.float32), *scores], axis=1)

    def search(self, query: np.ndarray | Words, most: int = 20) -> list[tuple[str, float]]:
        """Return the paths of the most similar images, in that order, and their scores."""
        scores = self.scores([query])[0]
        order = np.argsort(-scores, kind='stable')[:most]
        return [(self.names[i], float(scores[i])) for i in order]

    def _compare_vectors(self, shard: dict[str, np.ndarray], queries: Sequence[Any]) -> np.ndarray:
        return np.stack(queries) @ shard['vectors'].astype(np.float32).T

    def _compare_words(self, shard: dict[str, np.ndarray], queries: Sequence[Any]) -> np.ndarray:
        scores = []
        for words, residuals in queries:
            first = shard['starts'][words]
            lengths = shard['starts'][words + 1] - first
            # For each comparison, the word of the query and the row of the shard.
            mine = np.repeat(np.arange(len(words)), lengths)
            rows = np.arange(len(mine)) + np.repeat(first - lengths.cumsum() + lengths, lengths)
            found = similarity(shard['residuals'][rows], residuals[mine], self.settings)
            sums = np.bincount(shard['images'][rows], found, minlength=len(shard['sizes']))
            scores.append(sums / np.sqrt(shard['sizes'] * float(len(words))))
        return np.array(scores, np.float32)

    def _add_shard(self) -> None:
        start = f'{len(self.arrays):05d}'
        content = self._read(start)
        for name in content['arrays']:
            self._load(f'{start}_{name}')  # raises if it is damaged
        self.arrays.append(content['arrays'])
        self.names += content['images']

    def _read(self, name: str) -> Any:
        return json.loads((self.folder / f'{name}.json').read_text(encoding='utf-8'))

    def _load(self, name: str) -> np.ndarray:
        return np.load(self.folder / f'{Path(name).name}.npy', mmap_mode='r', allow_pickle=False)


def _invert(images: Sequence[Words], codebook: int) -> dict[str, np.ndarray]:
    """Sort residuals by word: those of word w are the rows from starts[w] to starts[w + 1]."""
    words = np.concatenate([image.words for image in images])
    sizes = np.array([len(image.words) for image in images])
    order = np.argsort(words, kind='stable')
    return {
        'sizes': sizes,
        'starts': np.searchsorted(words[order], np.arange(codebook + 1)),
        'images': np.repeat(np.arange(len(images), dtype=np.int32), sizes)[order],
        'residuals': np.concatenate([image.residuals for image in images])[order],
    }


def _save(path: Path, array: np.ndarray) -> None:
    with replacing(path) as unfinished, unfinished.open('wb') as file:
        np.save(file, array, allow_pickle=False)


def build_index(
    folder: str | os.PathLike,
    settings: Settings,
    paths: Sequence[Path],
    learn_from: Sequence[Path] | None = None,
    device: str = 'cpu',
) -> tuple[Index, Describer, dict[Path, str]]:
    """Make an index, or add the images that it lacks.

    Args:
        folder (str or PathLike): The index.
        settings (Settings): How images are described; those of an existing index stay.
        paths (Sequence[Path]): The images.
        learn_from (Sequence[Path], optional): Images that PCA and codebook are learned from.
            Defaults to None, the same.
        device (str): Where the network runs. Defaults to ``cpu``.

    Returns:
        tuple: The index, what describes images for it, and why which images were skipped.
    """
    if Path(folder, 'index.json').is_file():
        index = Index(folder)
        describer = index.describer(device)
    else:
        network = Network(settings.checkpoint, settings.config, settings.model, device)
        describer = Describer(network, settings, {})
        learn(describer, learn_from or paths)
        index = Index.create(folder, describer)
    known = set(index.names)
    new = {name: path for path in paths if (name := os.path.abspath(path)) not in known}
    skipped: dict[Path, str] = {}
    waiting: dict[str, Any] = {}
    try:
        for name, path in track(list(new.items()), 'images'):
            try:
                waiting[name] = describer(read_image(path))
            except ValueError as error:
                skipped[path] = str(error)
            if len(waiting) == SHARD:
                index.add(list(waiting), list(waiting.values()))
                waiting = {}
    finally:
        if waiting:  # after Ctrl-C, too
            index.add(list(waiting), list(waiting.values()))
    return index, describer, skipped
