"""What is in somebody's folders, for messages and for guesses."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

# Images whose names are compared with those of labels.
COMPARED = 20


def contents_of(folder: Path, limit: int = 5) -> str:
    """The kinds of files in a folder and below, the most frequent first."""
    kinds = Counter(p.suffix or 'no suffix' for p in folder.rglob('*') if p.is_file())
    found = [f'{count} files with {kind}' for kind, count in kinds.most_common(limit)]
    return ', '.join(found) or 'no files at all'


def stem_of(name: str, suffixes: str | Sequence[str]) -> str | None:
    """A name without its suffix; None if it has none of them.

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
    """What follows the names of images in those of labels: ``.png``, ``_mask.png``...

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
