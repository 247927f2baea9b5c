"""A backbone over an image of any size on one machine: the same features, strip by strip.

The tokens live in memory or in files, from which an interrupted run resumes.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import UserError
from ..models import XCiT
from ..models.fast import (
    HALO,
    StatisticsSum,
    StemRows,
    add_positions,
    has_fixed_statistics,
    is_changed,
    map_to_tokens,
    run_rows,
)
from ..models.layers import XCiTLayer
from .images import Image, Prepare, open_image
from .maps import Map, PyramidLevel, TokenMap
from .plan import TilingPlan, make_plan, parse_bytes, read_plan, write_plan
from .store import Rows, TokenStore
from .windows import Window, pieces

# Called with the number of steps that are done, and of all steps.
StripProgress = Callable[[int, int], None]


class WholeImage:
    """Runs a backbone over images of any size, with the result of running it over the whole image.

    Args:
        backbone (XCiT): The backbone, in eval mode.
        memory (str or int, optional): What the process may use, all included, as in ``4GB`` or in
            bytes. Defaults to None, no limit.
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
        memory: str | int | None = None,
        folder: str | Path | None = None,
        prepare: Prepare | None = None,
        job: str | None = None,
        report: StripProgress | None = None,
    ) -> None:
        check_backbone(backbone)
        self.backbone = backbone
        self.memory = None if memory is None else parse_bytes(str(memory))
        self.folder = None if folder is None else Path(folder)
        self.device = next(backbone.parameters()).device
        self.prepare = prepare or Prepare(backbone.in_channels, device=self.device)
        self.job = job
        self.report = report or (lambda done, total: None)

    def plan(self, image: Image, segmentor: Any = None) -> TilingPlan:
        """Decide how an image is cut, or return how unfinished work in the folder cuts it.

        Args:
            image (Image): The image.
            segmentor (EncoderDecoder, optional): The segmentor, if its neck and head run too.
                Defaults to None.

        Raises:
            UserError: If the image, memory or the disk is too small, if the image has other
                channels, or if the folder has unfinished work of another job.
        """
        self.prepare.check(image)
        shape, patch = image.shape, self.backbone.patch_size
        if min(shape[:2]) < patch:
            raise UserError(
                f'The image has {shape[1]} x {shape[0]} pixels, and must be at least one patch in '
                f'size, {patch} x {patch}.'
            )

        if self.folder is None:
            return make_plan(self.backbone, shape, self.memory, None, segmentor)
        job = job_of(self.backbone, image) if self.job is None else self.job
        path = self.folder / 'plan.json'
        if path.exists():
            return read_plan(path, job)
        plan = make_plan(self.backbone, shape, self.memory, self.folder, segmentor)
        write_plan(path, job, plan)
        return plan

    @torch.no_grad()
    def __call__(self, image: Any, plan: TilingPlan | None = None) -> list[Map]:
        """Extract features.

        Args:
            image: A path, an array (H, W, C), or an :class:`~xcit_mm.large.images.Image`.
            plan (TilingPlan, optional): How the image is cut. Defaults to None: see :meth:`plan`.

        Returns:
            list[Map]: What the backbone returns, computed from the tokens where it is read.
        """
        image = open_image(image)
        plan = plan or self.plan(image)
        shape = (*plan.grid, self.backbone.embed_dims)
        kept = [index + 1 for index in self.backbone.out_indices]
        store = TokenStore(shape, kept, self.folder)
        self._run_layers(image, plan, store)
        maps: list[Map] = [TokenMap(rows, self.device) for rows in store.levels()]
        pyramid = self.backbone.pyramid
        if pyramid is None:
            return maps
        return [PyramidLevel(x, level) for x, level in zip(maps, pyramid.levels, strict=True)]

    def _run_layers(self, image: Image, plan: TilingPlan, store: TokenStore) -> None:
        """Run stem and layers over strips; gather the sums for the next layer on the way."""
        depth = len(self.backbone.layers)
        strips = list(pieces(plan.grid[0], plan.rows))
        total = len(strips) * (depth + 1)
        done, state = store.resume()
        sums = self._statistics(done)
        if sums is not None and state:
            sums.load(state)
        self.report(len(strips) * (done + 1), total)
        for index in range(done + 1, depth + 1):
            following = self._statistics(index)
            target = store.create(index)
            if sums is None:
                results = self._stem(image, plan.grid, strips)
            else:
                results = self._layer(index - 1, sums, store.open(index - 1), strips)
            for i, ((start, _), x) in enumerate(zip(strips, results, strict=True)):
                if following is not None:
                    following.add(x.flatten(0, 1)[None])
                target.write(start, x)
                self.report(len(strips) * index + i + 1, total)
            store.finish(index, following)
            sums = following

    def _statistics(self, index: int) -> StatisticsSum | None:
        """Return sums over the tokens that enter a layer, in float64; None if there is none."""
        if not 0 <= index < len(self.backbone.layers):
            return None
        layer = cast(XCiTLayer, self.backbone.layers[index])
        return StatisticsSum(layer.xca, layer.norm1, torch.float64)

    def _stem(
        self, image: Image, grid: tuple[int, int], strips: list[tuple[int, int]]
    ) -> Iterator[Tensor]:
        """Yield the tokens (rows, W, d) of each strip."""
        height, width, _ = image.shape
        stem = StemRows(self.backbone.patch_embed, height)
        for start, stop in strips:
            pixels = self.prepare(image.read(Window(*stem.pixels(start, stop), 0, width)))
            x = map_to_tokens(stem(pixels, start, stop))
            x = add_positions(x, self.backbone.pos_embed, grid, start, stop)
            yield x.view(stop - start, grid[1], -1)

    def _layer(
        self, index: int, sums: StatisticsSum, source: Rows, strips: list[tuple[int, int]]
    ) -> Iterator[Tensor]:
        """Yield the tokens (rows, W, d) of each strip after a layer."""
        layer = cast(XCiTLayer, self.backbone.layers[index])
        linear = sums.linear_map()
        # In memory, the result overwrites the rows above a strip: copies of them are kept.
        above = source.read(0, 0)
        for start, stop in strips:
            x = torch.cat([above, source.read(start, min(stop + HALO, source.shape[0]))])
            first = start - len(above)
            above = x[max(stop - HALO - first, 0) : stop - first].clone()
            yield run_rows(layer, linear, x.to(self.device), start - first, stop - first)


def job_of(backbone: XCiT, image: Image) -> str:
    """Return a hash of the weights, and of the size and three rows of an image."""
    digest = hashlib.sha256(repr(image.shape).encode())
    for tensor in backbone.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    height, width, _ = image.shape
    for row in (0, height // 2, height - 1):
        digest.update(image.read(Window(row, row + 1, 0, width)).tobytes())
    return digest.hexdigest()


def check_backbone(backbone: Any) -> None:
    """Raise unless a backbone can run in pieces for inference."""
    if not isinstance(backbone, XCiT):
        raise UserError(
            f'Only XCiT can run in pieces, and the backbone is {type(backbone).__name__}.'
        )
    if is_changed(backbone):
        raise ValueError('modules of the backbone were hooked, wrapped or replaced')
    if backbone.training:
        raise ValueError('the backbone must be in eval mode')
    layers: list[Any] = [*backbone.patch_embed.layers, *(layer.lpi for layer in backbone.layers)]
    if not all(has_fixed_statistics(layer.norm) for layer in layers):
        raise UserError('Only an XCiT whose norm_cfg is BatchNorm can run in pieces.')
    if next(backbone.parameters()).dtype != torch.float32:
        raise ValueError('the backbone must be in float32')
