"""The ids of images and categories in predictions: those of an annotation file, or our own."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcit_mm_runtime import coco
from xcit_mm_runtime.inputs import MediaSource, is_video
from xcit_mm_runtime.text import join_some

from ..errors import UserError


@dataclass
class Ids:
    """Ids of images and classes.

    Args:
        images (Sequence[int | None]): Id of each source. Those that an annotation file lacks, and
            videos, have none there.
        categories (list[dict]): COCO's entry of each class, in the order of the labels.
        meaning (str): Where the ids come from, in a sentence.
        annotated (bool): Whether they come from an annotation file.
    """

    images: Sequence[int | None]
    categories: list[dict[str, Any]]
    meaning: str
    annotated: bool


def own_ids(
    sources: Sequence[MediaSource], classes: Sequence[str], known: Sequence[int] | None
) -> Ids:
    """Return ids for images without annotations.

    Args:
        sources (Sequence[MediaSource]): The inputs, numbered from 1.
        classes (Sequence[str]): Names of the classes.
        known (Sequence[int], optional): Their ids, where the model has them; else, from 1.
    """
    images = range(1, len(sources) + 1)
    return Ids(images, coco.categories(classes, known), coco.OWN_IDS, annotated=False)


class AnnotationFile:
    """A file in COCO's layout that gives the ids of images, by file name, and of classes, by name.

    Args:
        path (str): The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            content = coco.read_coco(path)
            self.images = [(str(image['file_name']), image['id']) for image in content['images']]
            self.categories = [(each['name'], each['id']) for each in content['categories']]
        except (ValueError, KeyError) as error:
            raise UserError(
                f"--ann-file {path} is not an annotation file in COCO's layout, which has images "
                'with "id" and "file_name", and categories with "id" and "name": '
                f'{type(error).__name__}: {error}'
            ) from None

    def ids(self, sources: Sequence[MediaSource], classes: Sequence[str]) -> Ids:
        """Return the ids of some images and classes.

        Args:
            sources (Sequence[MediaSource]): The inputs. What the file lacks gets no id.
            classes (Sequence[str]): The classes of the model, all of which the file must have.
        """
        by_class = self._unique(self.categories, 'categories')
        lacking = [name for name in classes if name not in by_class]
        if lacking:
            raise UserError(
                f'--ann-file {self.path} has no category {_quote(lacking)}, which the model '
                f'predicts; its categories are {_quote(by_class)}. Names must be the same, letter '
                'by letter.'
            )
        categories = [{'id': by_class[name], 'name': name} for name in classes]
        meaning = f'Ids are those of {Path(self.path).name}.'
        return Ids(self._image_ids(sources), categories, meaning, annotated=True)

    def _image_ids(self, sources: Sequence[MediaSource]) -> list[int | None]:
        by_name = self._unique(
            [(file_name.replace('\\', '/'), number) for file_name, number in self.images], 'images'
        )
        bare = Counter(name.rpartition('/')[2] for name in by_name)
        alone = {n.rpartition('/')[2]: i for n, i in by_name.items() if bare[Path(n).name] == 1}
        found: list[int | None] = [None] * len(sources)
        taken: dict[int, MediaSource] = {}
        for i, source in enumerate(sources):
            if isinstance(source, int) or is_video(source):
                continue
            path = Path(source)
            parts = path.absolute().parts
            # The longest match: of a.jpg and left/a.jpg, the latter is left/a.jpg.
            endings = ('/'.join(parts[i:]) for i in range(len(parts)))
            number = next((by_name[name] for name in endings if name in by_name), None)
            if number is None:  # a copy in another folder
                number = alone.get(path.name)
            if number is None:
                continue
            if number in taken:
                raise UserError(
                    f'{taken[number]} and {source} are both the image {number} of --ann-file '
                    f'{self.path}, by their names. Give the images of one folder.'
                )
            found[i], taken[number] = number, source
        images = sum(not is_video(source) for source in sources)
        if images and not taken:
            raise UserError(
                f'--ann-file {self.path} has none of the {images} images: it lists '
                f'{_quote(by_name, 3)}, for example.'
            )
        return found

    def _unique(self, pairs: list[tuple[str, int]], what: str) -> dict[str, int]:
        counts = Counter(name for name, _ in pairs)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise UserError(
                f'--ann-file {self.path} is ambiguous: several of its {what} are named '
                f'{_quote(repeated)}.'
            )
        return dict(pairs)


def _quote(names: Iterable[str], most: int = 10) -> str:
    return join_some([repr(name) for name in names], most)
