"""Semantic segmentation of an image of any size, as if it had been done at once."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import UserError
from .heads import check_segmentor, logits_map
from .images import Image, Prepare, TiffImage
from .labels import Labels, write_preview, write_tiff
from .maps import Given, Map, Resized
from .plan import BAND, Plan, check_disk, fixed_plan, make_plan
from .whole import WholeImage, as_image, check_backbone
from .windows import Window, pieces, tiles

# Called with what is being done, the steps that are done, and all steps.
Report = Callable[[str, int, int], None]


class WholeSegmentation:
    """Segments an image of any size with the result of segmenting it at once.

    That is mmseg's result in ``whole`` mode for the image at its own resolution, without the resize
    of the config's test pipeline. If interrupted, the same call with the same folder resumes.

    Args:
        model (EncoderDecoder): The segmentor: Semantic FPN or UperNet on an XCiT.
        folder (str or Path): Where intermediate files go; deleted at the end.
        memory (int, optional): Bytes that the process may use. Defaults to None, no limit.
        job (str): Identifies image, weights and settings. Defaults to ''.
        report (callable, optional): Called with what is being done, the steps that are done, and
            all steps.
    """

    def __init__(
        self,
        model: Any,
        folder: str | Path,
        memory: int | None = None,
        job: str = '',
        report: Report | None = None,
    ) -> None:
        check_segmentor(model)
        check_backbone(model.backbone)
        if model.backbone.pyramid is None:
            raise UserError('--whole needs a backbone with a pyramid.')
        self.model = model
        self.folder = Path(folder)
        self.memory = memory
        self.job = job
        self.report = report or (lambda what, done, total: None)
        self.device = next(model.parameters()).device

    def plan(self, image: Image) -> Plan:
        """How an image is cut; raises if memory or disk are too small for it."""
        shape, backbone = image.shape, self.model.backbone
        if min(shape[:2]) < backbone.patch_size:
            raise UserError(
                f'The image has {shape[1]} x {shape[0]} pixels, and must have at least '
                f'{backbone.patch_size} x {backbone.patch_size}.'
            )

        def make() -> Plan:
            plan = make_plan(backbone, shape, self.memory, True, self.model)
            # The labels once as they are, and once more as a TIFF that does not compress at all.
            wide = self.model.decode_head.out_channels > 256
            labels = 2 * shape[0] * shape[1] * (2 if wide else 1)
            self.folder.mkdir(parents=True, exist_ok=True)
            check_disk(self.folder, (len(backbone.out_indices) + 1) * plan.tokens_bytes + labels)
            return plan

        return fixed_plan(self.folder, self.job, make)

    @torch.no_grad()
    def __call__(
        self, image: Any, out: Path, preview: Path | None = None, plan: Plan | None = None
    ) -> Path:
        """Write the labels of an image as a TIFF.

        Args:
            image: A path, an array (H, W, C), or an :class:`~xcit_mm.large.images.Image`.
            out (Path): The TIFF.
            preview (Path, optional): A small picture, a PNG. Defaults to None.
            plan (Plan, optional): How the image is cut. Defaults to None: what :meth:`plan` says.
        """
        image = as_image(image)
        labels = self.labels(image, plan or self.plan(image))
        self.report('writing', 0, 1)
        write_tiff(out, labels, image.geo_tags() if isinstance(image, TiffImage) else [])
        if preview is not None:
            write_preview(preview, image, labels, palette_of(self.model))
        shutil.rmtree(self.folder)
        self.report('writing', 1, 1)
        return out

    @torch.no_grad()
    def labels(self, image: Image, plan: Plan) -> Labels:
        """The labels of an image, in a file of the folder."""
        model = self.model
        backbone = WholeImage(
            model.backbone,
            folder=self.folder,
            prepare=Prepare(model.backbone.in_channels, model.data_preprocessor, self.device),
            job=self.job,
            report=lambda done, total: self.report('layers', done, total),
        )
        logits = logits_map(model, backbone(image, plan))
        size = image.shape[:2]
        labels = Labels(self.folder, size, max(model.decode_head.out_channels, 2))
        every = list(tiles(size, plan.tile))
        for i, tile in enumerate(every):
            if i >= labels.done:
                labels.write(tile, classify(model, logits, size, tile))
            self.report('tiles', i + 1, len(every))
        return labels


def classify(model: Any, logits: Map, size: tuple[int, int], tile: Window) -> np.ndarray:
    """The labels of a tile.

    Args:
        model (EncoderDecoder): The segmentor.
        logits (Map): Its logits.
        size (tuple[int, int]): Height and width of the image.
        tile (Window): The tile, in pixels of the image.
    """
    align = model.align_corners
    part = Resized(logits, size, align_corners=align).source_window(tile)
    given = Given(logits.read(part), logits.size, (part.top, part.left))
    resized = Resized(given, size, align_corners=align)
    bands = []
    for start, stop in pieces(tile.bottom - tile.top, BAND):
        scores = resized.read(tile._replace(top=tile.top + start, bottom=tile.top + stop))
        bands.append(labels_from_logits(model, scores))
    return np.concatenate(bands)


def labels_from_logits(model: Any, logits: torch.Tensor) -> np.ndarray:
    """Labels (h, w) from logits (1, C, h, w); one channel is a foreground with a threshold."""
    if logits.shape[1] > 1:
        return logits[0].argmax(0).cpu().numpy()
    return (logits[0, 0].sigmoid() > model.decode_head.threshold).cpu().numpy()


def palette_of(model: Any) -> np.ndarray:
    """A color for each class: those of the dataset, or random ones."""
    meta = getattr(model, 'dataset_meta', None) or {}
    classes = max(model.decode_head.out_channels, 2)
    palette = meta.get('palette')
    if palette is not None and len(palette) >= classes:
        return np.asarray(palette)
    return np.random.default_rng(0).integers(0, 256, (classes, 3))
