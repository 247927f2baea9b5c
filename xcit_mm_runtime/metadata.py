"""What an exported file says about itself, written by the export and read by the runtime."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ModelError

# The key in the metadata of an ONNX file, and the newest layout that this version reads.
KEY, FORMAT = 'xcit_mm', 2


@dataclasses.dataclass(kw_only=True)
class Metadata:
    """All that is needed to use an exported model. Files of earlier versions lack some of it.

    Args:
        task (str): ``detection``, ``segmentation`` or ``features``.
        classes (list[str]): Names of the classes; none for a backbone.
        palette (list[list[int]], optional): Their RGB colors.
        category_ids (list[int], optional): Their ids in the annotations of the data, if known.
        channels (int): Number of channels of the input.
        input (dict): Arguments of :func:`.preprocess.to_planes`.
        resize (dict, optional): Argument of :func:`.preprocess.resize_image`.
        name (str): Name of the model. Defaults to ''.
        bit_depth (int, optional): How many bits the values of 16-bit images have, if known.
        mask_thr (float, optional): Lowest probability that belongs to an object. Defaults to 0.5.
        strides (list[int], optional): Pixels of the input per pixel of each level.
        patch_size (int, optional): Side of a patch of the network. Defaults to 1.
        padding_divisor (int, optional): The graph pads sides to multiples of it. Defaults to 1.
        binary_threshold (float, optional): Probability above which a segmentor with one output
            labels a pixel. Defaults to 0.5.
        windows (dict, optional): ``size``, ``overlap`` and ``limit`` of the sliding windows in
            which a detector predicts; None for whole images.
        precision (str): ``float32``, ``float16`` or ``int8``. Defaults to ``float32``.
        checkpoint (dict, optional): ``name`` and ``sha256`` of the weights.
        versions (dict, optional): Of the packages that wrote the file, and of ONNX's operators.
        created (str): Date and time. Defaults to ''.
    """

    task: str
    classes: list[str]
    palette: list[list[int]] | None
    category_ids: list[int] | None
    channels: int
    input: dict[str, Any]
    resize: dict[str, Any] | None
    name: str = ''
    bit_depth: int | None = None
    mask_thr: float | None = None
    strides: list[int] | None = None
    patch_size: int | None = None
    padding_divisor: int | None = None
    binary_threshold: float | None = None
    windows: dict[str, Any] | None = None
    precision: str = 'float32'
    checkpoint: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    created: str = ''

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file's metadata."""
        # Versions that read only format 1 know nothing of windows, and read all other files.
        return {'format': 2 if self.windows else 1, **dataclasses.asdict(self)}

    @classmethod
    def read(cls, properties: Mapping[str, str], path: Path) -> 'Metadata':
        """Read the metadata of an ONNX file.

        Args:
            properties (Mapping[str, str]): All metadata of the file.
            path (Path): The file, for error messages.

        Raises:
            ModelError: If the export did not write them, or if this version cannot read them.
        """
        if KEY not in properties:
            raise ModelError(
                f'{path} is an ONNX file that xcit-mm export did not write: it lacks the metadata '
                f'{KEY!r}, which says how to prepare images.'
            )
        try:
            content = json.loads(properties[KEY])
            if int(content['format']) > FORMAT:
                raise ModelError(
                    f'{path} was written by a newer version, in format {content["format"]}; this '
                    f'one reads up to {FORMAT}. Update xcit_mm, or export the model again.'
                )
            known = {field.name for field in dataclasses.fields(cls)}
            return cls(**{name: value for name, value in content.items() if name in known})
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f'{path}: its metadata {KEY!r} is damaged ({error}). Export the model again.'
            ) from None
