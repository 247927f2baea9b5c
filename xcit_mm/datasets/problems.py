"""All kinds of problems that a dataset can have, and the report that lists those found."""

import json
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from ..tables import format_table
from .objects import Objects

# Files of each kind of problem that are printed.
EXAMPLES = 3
# mmdet leaves such objects out of training; pycocotools evaluates against all of the file.
SKIPPED = 'training skips the object, but evaluation still counts it'
# kind -> what happens in training and testing. Errors stop a run or corrupt the training.
ERRORS = {
    'config: class count': 'a head has another number of classes than the data; the run stops',
    'dataset: empty': 'there are no images to use; the run stops',
    'dataset: no labels': 'none of the images has a label; the run stops',
    'dataset: reduce_zero_label': 'the dataset and its pipeline contradict each other; the run '
    'stops',
    'annotations: not COCO': 'the file or an entry lacks what COCO files have; the run stops',
    'annotations: duplicate id': 'entries would replace others; the run stops',
    'annotations: not a number': 'NaN or infinity in a box, polygon or size; the run stops',
    'annotations: class missing': 'a class of the config is not in the file; the run stops',
    'annotations: duplicate name': 'categories have one name, which mmdet mixes up; the run stops',
    'annotations: mask of another size': 'its run lengths are not for this image; the run stops',
    'annotations: unknown category': 'no category of the file has that id; mmdet skips the object',
    'annotations: unknown image': 'no image of the file has that id; mmdet skips the object',
    'annotations: box outside': f'the box lies outside the image; {SKIPPED}',
    'annotations: empty box': f'no area, or a side below one pixel; {SKIPPED}',
    'annotations: empty polygon': 'no polygon of three points; mmdet ignores the object',
    'annotations: no mask': 'the pipeline loads masks and the object has none; the run stops',
    'image: missing': 'there is no such file; the run stops',
    'image: empty': 'the file has zero bytes; the run stops',
    'image: truncated': 'the file is cut off; the run stops',
    'image: unreadable': 'no decoder can read the file; the run stops',
    'image: other size': "its size is not the annotation file's; boxes and masks are off",
    'label: missing': 'there is no such file; the run stops',
    'label: unreadable': 'no decoder can read the file; the run stops',
    'label: other size': 'its size is not that of its image; the run stops',
    'label: colors': 'several channels, not one with class numbers; the run stops',
    'label: out of range': 'values that are not classes of the config; the run stops',
}
NOTES = {
    'annotations: box reaches outside': 'mmdet cuts it off at the border',
    'image: tiny': 'a side below 16 pixels; read and scaled up, unless filter_cfg leaves it out',
    'image: huge': 'over 50 megapixels; decoded whole before it is scaled',
    'image: gray': 'read as three equal channels',
    'image: CMYK': 'converted to three channels',
    'image: alpha': 'read without its transparency',
    'image: 16 bit': 'scaled to 8 bits; bit_depth in the pipelines says from which range',
    'image: rotated by EXIF': 'rotated when it is read; labels and boxes must fit that',
    'label: without image': 'not used',
    'label: class never used': 'no pixel has it; if you expected some, see reduce_zero_label',
}
# What a conversion from another format leaves out, and what it changes.
LEFT_OUT = {
    'left out: split missing': 'there is no such folder or list; its images are left out',
    'left out: image missing': 'there is no image for the labels or the line of a list',
    'left out: image unreadable': 'the image is damaged; its objects are left out too',
    'left out: several images': 'images with one name share their labels; all are left out',
    'left out: no annotations': 'a list names the image and nothing describes it',
    'left out: annotations unreadable': 'the file is damaged; its image is left out too',
    'left out: line unreadable': 'a line is not in the format; the object is left out',
    'left out: unknown class': 'the class is not one of the dataset; the object is left out',
    'left out: not a number': 'a coordinate is missing, NaN or infinite; the object is left out',
    'left out: empty box': 'a side of zero, or below one pixel; the object is left out',
    'left out: box outside': 'the box lies outside the image; the object is left out',
    'left out: mask unreadable': 'the file is damaged; the object is left out',
    'left out: mask of another size': 'its size is not that of its image; the object is left out',
    'left out: empty mask': 'all of it is black; there is no object',
    'left out: duplicate': 'listed or drawn twice; one of them is left out',
}
CHANGED = {
    'changed: clipped': 'the box reached over the border and was cut off there',
    'changed: other size': "the file states another size than the image has; the image's is used",
    'changed: no labels': 'there is no file of labels; kept as an image without objects',
    'changed: masks overlap': 'kept as they are; pixels belong to several objects',
    'changed: in several splits': 'kept in all of them; leakage between splits inflates results',
}
# Settings of a detector that do not fit the data.
MISFITS = {
    'config: small objects': 'the network hardly sees many of the objects; use a larger scale in '
    'the pipelines, or a patch size of 8',
    'config: anchors': 'proposals learn nothing of many of the objects; use other scales or ratios '
    'in rpn_head.anchor_generator',
    'config: few detections': 'the limits on detections are lower than the number of objects',
    'config: windows': 'test_cfg.windows is ignored; use a detector that slides windows',
}
KINDS = ERRORS | LEFT_OUT | NOTES | CHANGED | MISFITS


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one file.

    Args:
        kind (str): A key of :data:`KINDS`.
        file (str): The file.
        detail (str): What and where. Defaults to '', what the kind says.
    """

    kind: str
    file: str
    detail: str = ''

    @property
    def severity(self) -> str:
        """``error`` if it stops a run or loses data, else ``note``."""
        return 'error' if self.kind in ERRORS or self.kind in LEFT_OUT else 'note'

    def __str__(self) -> str:
        return f'{self.file}: {self.detail or KINDS[self.kind]}'


class DataError(UserError):
    """Data that a run cannot use; the message names the file."""

    def __str__(self) -> str:
        # A worker process of a data loader prepends its stack trace.
        return super().__str__().rpartition(f'{type(self).__name__}: ')[2].strip()


@dataclass
class CheckReport:
    """The problems that a check or a conversion found.

    Args:
        splits (list[str]): The splits that were looked at.
        images (int): The number of images that were decoded. Defaults to 0.
        problems (list[Problem]): The problems. Defaults to none.
        objects (dict[str, Objects]): The objects of each split with boxes. Defaults to none.
    """

    splits: list[str]
    images: int = 0
    problems: list[Problem] = field(default_factory=list)
    objects: dict[str, Objects] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """The number of errors; all other problems are notes."""
        return sum(problem.severity == 'error' for problem in self.problems)

    def describe(self) -> str:
        """Return a table with a row per kind of problem, and the first files of each kind."""
        rows: list[dict[str, Any]] = []
        lines = []
        for kind, meaning in KINDS.items():
            found = [problem for problem in self.problems if problem.kind == kind]
            if not found:
                continue
            row = {'problem': kind, 'severity': found[0].severity, 'count': len(found)}
            rows.append({**row, 'what happens': meaning})
            lines += [f'{kind}:', *(f'  {problem}' for problem in found[:EXAMPLES])]
            if len(found) > EXAMPLES:
                lines.append(f'  and {len(found) - EXAMPLES} more')
        return '\n'.join([format_table(rows), '', *lines])

    def to_json(self) -> str:
        """Return all problems, for other programs."""
        problems = [
            {'problem': p.kind, 'severity': p.severity, 'file': p.file, 'detail': p.detail}
            for p in self.problems
        ]
        content = {'splits': self.splits, 'images': self.images, 'problems': problems}
        return json.dumps(content, indent=1) + '\n'
