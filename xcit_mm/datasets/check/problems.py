"""What can be wrong with a data set, and what a run does about it."""

from dataclasses import dataclass

from ...errors import UserError

# kind -> what happens in training and testing. Errors stop a run or corrupt the training.
ERRORS = {
    'annotations: not COCO': 'the file or an entry lacks what COCO files have; the run stops',
    'annotations: duplicate id': 'entries would replace others; the run stops',
    'annotations: not a number': 'NaN or infinity in a box, polygon or size; the run stops',
    'annotations: class missing': 'a class of the config is not in the file; the run stops',
    'annotations: unknown category': 'no category of the file has that id; mmdet skips the object',
    'annotations: unknown image': 'no image of the file has that id; mmdet skips the object',
    'annotations: box outside': 'the box lies outside the image; mmdet skips the object',
    'annotations: empty box': 'no area, or a side below one pixel; mmdet skips the object',
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
    'label: colours': 'several channels, not one with class numbers; the run stops',
    'label: out of range': 'values that are not classes of the config; the run stops',
}
NOTES = {
    'annotations: box reaches outside': 'mmdet cuts it off at the border',
    'image: tiny': 'a side below 16 pixels; read and scaled up, unless filter_cfg leaves it out',
    'image: huge': 'over 50 megapixels; decoded whole before it is scaled',
    'image: grey': 'read as three equal channels',
    'image: CMYK': 'converted to three channels',
    'image: alpha': 'read without its transparency',
    'image: 16 bit': 'reduced to 8 bits',
    'image: rotated by EXIF': 'rotated when it is read; labels and boxes must fit that',
    'label: without image': 'not used',
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one file.

    Args:
        kind (str): A key of :data:`ERRORS` or :data:`NOTES`.
        file (str): The file.
        detail (str): What and where. Defaults to ''.
    """

    kind: str
    file: str
    detail: str = ''

    @property
    def is_error(self) -> bool:
        return self.kind in ERRORS

    def __str__(self) -> str:
        return f'{self.file}: {self.detail or (ERRORS | NOTES)[self.kind]}'


class DataError(UserError):
    """Data that a run cannot use; the message names the file."""

    def __str__(self) -> str:
        # A worker process of a data loader prepends its stack trace.
        return super().__str__().rpartition(f'{type(self).__name__}: ')[2].strip()
