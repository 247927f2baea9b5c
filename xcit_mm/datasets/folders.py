"""Files in the folders of a user's dataset: their names, how names belong together, and splits."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

# name of a file or folder -> split
SPLIT_NAMES = {
    'train': 'train',
    'training': 'train',
    'val': 'val',
    'valid': 'val',
    'validation': 'val',
    'test': 'test',
    'testing': 'test',
    'trainval': 'trainval',
}
# Images whose names are compared with those of labels.
COMPARED = 20


def split_of(parts: Iterable[str]) -> str:
    """Return the split that a folder of a path is named after, as in ``stage1_train``; or ''."""
    words = (word for part in parts for word in re.split(r'[\W_]+', part.lower()))
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), '')


def count_file_types(folder: Path) -> str:
    """Count the kinds of files in a folder and below, the most frequent first."""
    kinds = Counter(p.suffix or 'no suffix' for p in folder.rglob('*') if p.is_file())
    found = [f'{count} files with {kind}' for kind, count in kinds.most_common(5)]
    return ', '.join(found) or 'no files at all'


def folders_named(home: Path, names: Sequence[str]) -> list[Path]:
    """Return the folders in another one with one of these names, in the order of the names.

    Args:
        home (Path): The folder that they are in.
        names (Sequence[str]): The names in lower case; upper case is the same.
    """
    inner = sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    return [path for name in names for path in inner if path.name.lower() == name]


def images_by_stem(folder: Path) -> dict[str, list[Path]]:
    """Return the images directly in a folder; two with one stem would share their labels."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        # Hidden files, such as "._1.png" of a Mac, are not images.
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith('.'):
            found.setdefault(path.stem, []).append(path)
    return found


def stem_of(name: str, suffixes: str | Sequence[str]) -> str | None:
    """Return a name without its suffix; None if it has none of them.

    Args:
        name (str): The name of a file.
        suffixes (str or Sequence[str]): What it may end in. Any type of image includes ``.JPG``;
            suffixes that a config names are exact.
    """
    suffixes = (suffixes,) if isinstance(suffixes, str) else tuple(suffixes)
    compared = name.lower() if suffixes == IMAGE_SUFFIXES else name
    fitting = [suffix for suffix in suffixes if compared.endswith(suffix)]
    return name[: -len(max(fitting, key=len))] if fitting else None


def label_endings(stems: Iterable[str], labels: Iterable[str]) -> list[str]:
    """Return what follows the names of images in those of labels: ``.png``, ``_mask.png``...

    Args:
        stems (Iterable[str]): Names of images without their suffixes.
        labels (Iterable[str]): Names of labels.

    Returns:
        list[str]: What fits the most images first, the shortest among equals.
    """
    stems, names = list(stems), set(labels)
    compared = tuple(stems[:: max(1, len(stems) // COMPARED)])
    endings = {n[len(stem) :] for stem in compared for n in names if n.startswith(stem)}
    count = {end: sum(stem + end in names for stem in stems) for end in endings}
    return sorted(endings, key=lambda end: (-count[end], len(end), end))


def relative_to(path: Path, folder: Path) -> str:
    """Return a path as configs have it: relative to the data's root if it is in there."""
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()


def read_lines(path: Path) -> dict[int, str]:
    """Return the lines of a text file by number, stripped, without empty ones.

    Raises:
        ValueError: If it is not UTF-8.
    """
    # Some Windows programs write a byte-order mark.
    lines = path.read_text(encoding='utf-8-sig').splitlines()
    return {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}


def split_randomly(names: Iterable[str], fraction: float, seed: int) -> dict[str, list[str]]:
    """Split names into train and val; if there are two or more, neither is empty.

    A hash decides, not a random generator: a new image hardly changes where the others go.

    Args:
        names (Iterable[str]): The names; their order does not matter.
        fraction (float): The part for validation; with 0, there is none.
        seed (int): Another seed gives another split.

    Returns:
        dict[str, list[str]]: The names of each split that has any, sorted.
    """
    ranked = sorted(names, key=lambda name: hashlib.sha256(f'{seed} {name}'.encode()).digest())
    count = min(max(round(fraction * len(ranked)), 1), len(ranked) - 1) if fraction else 0
    parts = {'train': ranked[max(count, 0) :], 'val': ranked[: max(count, 0)]}
    return {split: sorted(part) for split, part in parts.items() if part}
