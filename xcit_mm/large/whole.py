"""A backbone over an image of any size on one machine: the same features, strip by strip.

The tokens live in memory, where layers overwrite them, or in files. A layer reads one file and
writes another, so that an interrupted layer can be repeated.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from ..errors import TooSmallError, UserError
from ..models import XCiT
from ..models.fast import anatomy
from ..models.fast.operators import BatchNorm
from ..models.layers import XCiTLayer
from .images import ArrayImage, Image, Prepare, open_image
from .maps import Level, Map, Tokens
from .plan import Plan, fixed_plan, make_plan
from .rows import HALO, Statistics, embed_rows, run_rows, stem_heights, stem_ranges
from .store import Files, Memory, Rows
from .units import parse_bytes
from .windows import Window, pieces

# Called with the number of steps that are done, and of all steps.
Report = Callable[[int, int], None]


class WholeImage:
    """Runs a backbone over images of any size, with the result of running it over the whole image.

    Args:
        backbone (XCiT): The backbone, in eval mode.
        memory (str, optional): What the process may use, all included, as in ``4GB``. Defaults to
            None, no limit.
        folder (str or Path, optional): Where the tokens go. If interrupted, the same call with
            the same folder resumes at the layer where it stopped. Defaults to None: the tokens
            stay in memory.
        prepare (callable, optional): Makes the backbone's input from pixels. Defaults to None: the
            pixels as they are.
        job (str, optional): Identifies image, weights and settings: tokens of another job are not
            used. Defaults to None: a hash of the weights and of some rows of the image.
        report (callable, optional): Called with the strips that are done and with all strips.

    Examples:
        >>> import torch
        >>> from xcit_mm.large import WholeImage
        >>> from xcit_mm.models import XCiT
        >>> backbone = XCiT('n12', patch_size=16).eval()
        >>> image = torch.rand(64, 96, 3).numpy()
        >>> levels = WholeImage(backbone)(image)
        >>> [level.size for level in levels]
        [(16, 24), (8, 12), (4, 6), (2, 3)]
        >>> tuple(levels[0].whole().shape)
        (1, 128, 16, 24)
    """

    def __init__(
        self,
        backbone: XCiT,
        memory: str | None = None,
        folder: str | Path | None = None,
        prepare: Prepare | None = None,
        job: str | None = None,
        report: Report | None = None,
    ) -> None:
        check_backbone(backbone)
        self.backbone = backbone
        self.memory = None if memory is None else parse_bytes(memory)
        self.folder = None if folder is None else Path(folder)
        self.device = next(backbone.parameters()).device
        self.prepare = prepare or Prepare(backbone.in_channels, device=self.device)
        self.job = job
        self.report = report or (lambda done, total: None)

    @torch.no_grad()
    def __call__(self, image: Any, plan: Plan | None = None) -> list[Map]:
        """Extract features.

        Args:
            image: A path, an array (H, W, C), or an :class:`~xcit_mm.large.images.Image`.
            plan (Plan, optional): How the image is cut. Defaults to None: as the memory allows.

        Returns:
            list[Map]: What the backbone returns, computed from the tokens where it is read.
        """
        image = as_image(image)
        self.prepare.check(image)
        plan = self._plan(image, plan)
        if min(image.shape[:2]) < self.backbone.patch_size:
            raise TooSmallError(
                f'images must be at least one patch in size, {self.backbone.patch_size} pixels, '
                f'not {image.shape[1]} x {image.shape[0]}'
            )
        kept = self._run_layers(image, plan, self._store(plan))
        pyramid = self.backbone.pyramid
        maps: list[Map] = [Tokens(rows, self.device) for rows in kept]
        if pyramid is None:
            return maps
        return [Level(x, level) for x, level in zip(maps, pyramid.levels, strict=True)]

    def _plan(self, image: Image, plan: Plan | None) -> Plan:
        def make() -> Plan:
            return plan or make_plan(
                self.backbone, image.shape, self.memory, on_disk=self.folder is not None
            )

        if self.folder is None:
            return make()
        job = job_of(self.backbone, image) if self.job is None else self.job
        return fixed_plan(self.folder, job, make)

    def _store(self, plan: Plan) -> Memory | Files:
        shape = (*plan.grid, self.backbone.embed_dims)
        if self.folder is None:
            return Memory(shape)
        return Files(shape, self.folder, len(self.backbone.out_indices))

    def _run_layers(self, image: Image, plan: Plan, store: Memory | Files) -> list[Rows]:
        layers = cast(list[XCiTLayer], list(self.backbone.layers))
        per_layer = -(-plan.grid[0] // plan.rows)
        steps = Steps(self.report, per_layer * (len(layers) + 1))
        done, sums = store.resume()
        statistics = Statistics(layers[max(done, 0)]) if done < len(layers) else None
        if statistics is not None and sums:
            statistics.load(sums)
        steps.skip_to(per_layer * (done + 1))
        for depth in range(done + 1, len(layers) + 1):
            following = Statistics(layers[depth]) if depth < len(layers) else None
            target = store.create(depth)
            if depth == 0:
                self._run_stem(image, plan, target, following, steps)
            else:
                rows = (store.open(depth - 1), target)
                self._run_layer(depth - 1, plan, rows, statistics, following, steps)
            is_kept = depth - 2 in self.backbone.out_indices
            store.finish(depth, following, obsolete=None if is_kept else depth - 1)
            if depth - 1 in self.backbone.out_indices[:-1]:
                store.keep(depth)
            statistics = following
        return [store.open_kept(index + 1) for index in self.backbone.out_indices]

    def _run_stem(
        self,
        image: Image,
        plan: Plan,
        tokens: Rows,
        following: Statistics | None,
        steps: 'Steps',
    ) -> None:
        """Run the stem over strips, and gather the statistics for the first layer on the way."""
        height, width, _ = image.shape
        heights = stem_heights(height, len(self.backbone.patch_embed.layers))
        for start, stop in pieces(plan.grid[0], plan.rows):
            low, high = stem_ranges(heights, start, stop)[0]
            pixels = self.prepare(image.read(Window(low, high, 0, width)))
            x = embed_rows(self.backbone, pixels, height, start, stop)[0]
            if following is not None:
                following.add(x.flatten(0, 1))
            tokens.write(start, x)
            steps.advance()

    def _run_layer(
        self,
        index: int,
        plan: Plan,
        tokens: tuple[Rows, Rows],
        statistics: Statistics | None,
        following: Statistics | None,
        steps: 'Steps',
    ) -> None:
        """Run a layer over strips, and gather the statistics for the next one on the way."""
        layer, (source, target) = cast(XCiTLayer, self.backbone.layers[index]), tokens
        if statistics is None:
            raise ValueError('a layer needs the statistics of its tokens')
        linear = statistics.linear_map()
        height = plan.grid[0]
        # In memory, the result overwrites the rows above a strip: copies of them are kept.
        above = source.read(0, 0)
        for start, stop in pieces(height, plan.rows):
            x = torch.cat([above, source.read(start, min(stop + HALO, height))])
            first = start - len(above)
            above = x[max(stop - HALO - first, 0) : stop - first].clone()
            x = run_rows(layer, linear, x.to(self.device), start - first, stop - first)
            if following is not None:
                following.add(x.flatten(0, 1))
            target.write(start, x)
            steps.advance()


class Steps:
    """Counts strips for a report."""

    def __init__(self, report: Report, total: int) -> None:
        self.report = report
        self.total = total
        self.done = 0

    def advance(self) -> None:
        """Count one more."""
        self.skip_to(self.done + 1)

    def skip_to(self, done: int) -> None:
        """Count those that were done earlier."""
        self.done = done
        self.report(done, self.total)


def job_of(backbone: XCiT, image: Image) -> str:
    """A hash of the weights, and of the size and three rows of an image."""
    digest = hashlib.sha256(repr(image.shape).encode())
    for tensor in backbone.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    height, width, _ = image.shape
    for row in (0, height // 2, height - 1):
        digest.update(image.read(Window(row, row + 1, 0, width)).tobytes())
    return digest.hexdigest()


def as_image(image: Any) -> Image:
    """An image from a path, an array, or as it is."""
    if isinstance(image, (str, Path)):
        return open_image(image)
    return image if hasattr(image, 'read') else ArrayImage(image)


def check_backbone(backbone: Any) -> None:
    """Raise unless a backbone can run in pieces for inference."""
    if not isinstance(backbone, XCiT):
        raise UserError(
            f'Only XCiT can run in pieces, and the backbone is {type(backbone).__name__}.'
        )
    if anatomy(backbone) != backbone.as_built:
        raise ValueError('modules of the backbone were hooked, wrapped or replaced')
    if any(isinstance(m, BatchNorm) and m.training for m in backbone.modules()):
        raise ValueError('the backbone must be in eval mode')
    if next(backbone.parameters()).dtype != torch.float32:
        raise ValueError('the backbone must be in float32')
