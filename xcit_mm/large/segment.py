"""Semantic segmentation of an image of any size, as if it had been done at once."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import UserError
from .heads import check_segmentor, logits_map
from .images import Image, Prepare, open_image
from .labels import LabelFile, write_results
from .maps import Map, ResizedMap, TensorMap
from .plan import BAND, TilingPlan
from .whole import WholeImage
from .windows import Window, pieces, tiles

# Called with what is being done, the steps that are done, and all steps.
StepProgress = Callable[[str, int, int], None]


class WholeSegmentation:
    """Segments an image of any size with the result of segmenting it at once.

    That is mmseg's result in ``whole`` mode for the image at its own resolution, without the resize
    of the config's test pipeline. If interrupted, the same call with the same folder resumes.

    Args:
        model (EncoderDecoder): The segmentor: Semantic FPN or UperNet on an XCiT, in eval mode.
        folder (str or Path): Where intermediate files go; deleted at the end.
        memory (str or int, optional): What the process may use. Defaults to None, no limit.
        job (str, optional): As for :class:`WholeImage`. Defaults to None.
        report (callable, optional): Called with what is being done, the steps that are done, and
            all steps.
    """

    def __init__(
        self,
        model: Any,
        folder: str | Path,
        memory: str | int | None = None,
        job: str | None = None,
        report: StepProgress | None = None,
    ) -> None:
        check_segmentor(model)
        report = report or (lambda what, done, total: None)
        device = next(model.parameters()).device
        self.model = model
        self.report = report
        self.folder = Path(folder)
        self.backbone = WholeImage(
            model.backbone,
            memory,
            folder,
            Prepare(model.backbone.in_channels, model.data_preprocessor, device),
            job,
            lambda done, total: report('layers', done, total),
        )
        if model.backbone.pyramid is None:
            raise UserError('--whole needs a backbone with a pyramid.')

    def plan(self, image: Image) -> TilingPlan:
        """Decide how an image is cut; see :meth:`WholeImage.plan`."""
        return self.backbone.plan(image, self.model)

    @torch.no_grad()
    def __call__(
        self, image: Any, out: Path, preview: Path | None = None, plan: TilingPlan | None = None
    ) -> Path:
        """Write the labels of an image as a TIFF.

        Args:
            image: A path, an array (H, W, C), or an :class:`~xcit_mm.large.images.Image`.
            out (Path): The TIFF.
            preview (Path, optional): A small picture, a PNG. Defaults to None.
            plan (TilingPlan, optional): How the image is cut. Defaults to None: see :meth:`plan`.
        """
        image, model = open_image(image), self.model
        plan, size = plan or self.plan(image), image.shape[:2]
        logits = logits_map(model, self.backbone(image, plan))
        labels = LabelFile(self.folder, size, max(model.decode_head.out_channels, 2))
        every = list(tiles(size, plan.tile))
        for i, tile in enumerate(every):
            if i >= labels.done:
                labels.write(tile, classify(model, logits, size, tile))
            self.report('tiles', i + 1, len(every))
        self.report('writing', 0, 1)
        write_results(labels, image, model, out, preview)
        shutil.rmtree(self.folder)
        self.report('writing', 1, 1)
        return out


def classify(model: Any, logits: Map, size: tuple[int, int], tile: Window) -> np.ndarray:
    """Return the labels of a tile.

    Args:
        model (EncoderDecoder): The segmentor.
        logits (Map): Its logits.
        size (tuple[int, int]): Height and width of the image.
        tile (Window): The tile, in pixels of the image.
    """
    align = model.align_corners
    part = ResizedMap(logits, size, align_corners=align).source_window(tile)
    computed = TensorMap(logits.read(part), logits.size, (part.top, part.left))
    resized = ResizedMap(computed, size, align_corners=align)
    bands = []
    for start, stop in pieces(tile.bottom - tile.top, BAND):
        scores = resized.read(tile._replace(top=tile.top + start, bottom=tile.top + stop))
        bands.append(labels_from_logits(model, scores))
    return np.concatenate(bands)


def labels_from_logits(model: Any, logits: torch.Tensor) -> np.ndarray:
    """Return labels (h, w) of logits (1, C, h, w); one channel is a thresholded foreground."""
    if logits.shape[1] > 1:
        return logits[0].argmax(0).cpu().numpy()
    return (logits[0, 0].sigmoid() > model.decode_head.threshold).cpu().numpy()
