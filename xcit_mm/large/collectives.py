"""Exchanges between processes that share an image, with gradients.

The gradients are those of the sum of the losses of all processes. Averaged over the processes, as
DistributedDataParallel does, they are those of the loss itself where each process computes it for
the whole image.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from ..models.fast import HALO


class LostProcessError(RuntimeError):
    """A process that shares the image has ended, or does not answer."""


@contextmanager
def _noticing_losses() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            'A process that shares the image was lost: end the others, and start all of them '
            f'again ({" ".join(str(error).split())}).'
        ) from error


def check_sharing(world: int, processes: int) -> None:
    """Raise unless so many processes of all can share each image."""
    if processes < 1 or world % processes:
        raise ValueError(
            f'{world} processes cannot share images by {processes}: the number of processes must '
            'be a multiple.'
        )


class RowGroup:
    """The processes that share an image, in the order of its rows.

    Args:
        group (ProcessGroup, optional): The processes. Defaults to None: all of them.

    Attributes:
        sent (Counter): Bytes that this process has handed to each kind of exchange, forward and
            backward.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)
        self.sent: Counter[str] = Counter()

    def __deepcopy__(self, memo: dict) -> 'RowGroup':
        return self  # a copy of the model runs in the same processes

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return _Sum.apply(x, self) if self.size > 1 else x

    def first(self, x: Tensor) -> Tensor:
        """Broadcast a tensor from the first process, without gradient."""
        x = x.detach().clone()
        if self.size > 1:
            self._count('first', x if self.rank == 0 else x[:0])
            with _noticing_losses():
                distributed.broadcast(x, self._global(0), group=self.group)
        return x

    def neighbors(self, rows: Tensor, below: int) -> tuple[Tensor, Tensor]:
        """Return the last rows of the process above, and the first rows of the one below.

        Args:
            rows (Tensor): One's own, (B, n, W, d).
            below (int): Rows to expect from below, at most :data:`HALO`.
        """
        if self.size == 1:
            return rows[:, :0], rows[:, :0]
        return _Neighbors.apply(rows, below, self)

    def gather(self, x: Tensor, heights: list[int]) -> Tensor:
        """Return all rows of a map, from those of each process.

        Args:
            x (Tensor): One's own, (B, C, h, W).
            heights (list[int]): Their number in each process.
        """
        return _Gather.apply(x, heights, self) if self.size > 1 else x

    def exchange(self, up: Tensor, down: Tensor, above: Tensor, below: Tensor) -> None:
        """Send one tensor to each neighbor and receive one from each, all at once.

        Args:
            up (Tensor): For the process above.
            down (Tensor): For the process below.
            above (Tensor): Where to receive from above; empty if nothing comes.
            below (Tensor): Where to receive from below.
        """
        operations = []
        for tensor, step, send_or_receive in (
            (up, -1, distributed.isend),
            (down, 1, distributed.isend),
            (above, -1, distributed.irecv),
            (below, 1, distributed.irecv),
        ):
            if 0 <= self.rank + step < self.size and tensor.numel():
                peer = self._global(self.rank + step)
                operations.append(distributed.P2POp(send_or_receive, tensor, peer, self.group))
                if send_or_receive is distributed.isend:
                    self._count('rows', tensor)
        with _noticing_losses():
            for work in distributed.batch_isend_irecv(operations) if operations else ():
                work.wait()

    def _count(self, kind: str, x: Tensor) -> None:
        self.sent[kind] += x.numel() * x.element_size()

    def _global(self, rank: int) -> int:
        return rank if self.group is None else distributed.get_global_rank(self.group, rank)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: RowGroup) -> Tensor:
        ctx.group = group
        return _reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduced(grad, ctx.group), None


def _reduced(x: Tensor, group: RowGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    group._count('sums', x)
    with _noticing_losses():
        distributed.all_reduce(x, group=group.group)
    return x


class _Neighbors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, below: int, group: RowGroup) -> tuple[Tensor, Tensor]:
        ctx.group, ctx.num_rows = group, rows.shape[1]
        batch, _, width, dims = rows.shape
        counts = HALO if group.rank > 0 else 0, below
        from_above, from_below = (rows.new_empty(batch, n, width, dims) for n in counts)
        edges = rows[:, :HALO].contiguous(), rows[:, -HALO:].contiguous()
        group.exchange(*edges, from_above, from_below)
        return from_above, from_below

    @staticmethod
    def backward(ctx: Any, above: Tensor, below: Tensor) -> tuple[Tensor, None, None]:
        group: RowGroup = ctx.group
        batch, _, width, dims = above.shape
        grad = above.new_zeros(batch, ctx.num_rows, width, dims)
        # The gradients of the rows that were sent come back from where they were used.
        sent = min(HALO, ctx.num_rows)
        up, down = (above.new_zeros(batch, sent, width, dims) for _ in range(2))
        group.exchange(above.contiguous(), below.contiguous(), up, down)
        grad[:, :sent] += up
        grad[:, ctx.num_rows - sent :] += down
        return grad, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, heights: list[int], group: RowGroup) -> Tensor:
        ctx.group, ctx.heights = group, heights
        own = _padded(x, max(heights))
        parts = [torch.empty_like(own) for _ in heights]
        group._count('gathered', own)
        with _noticing_losses():
            distributed.all_gather(parts, own, group=group.group)
        return torch.cat([part[:, :, :n] for part, n in zip(parts, heights, strict=True)], dim=2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        group, heights = ctx.group, ctx.heights
        parts = [_padded(part, max(heights)) for part in grad.split(heights, dim=2)]
        group._count('gathered', grad)
        with _noticing_losses():
            # Not reduce_scatter, which gloo lacks in older versions of torch.
            for rank, part in enumerate(parts):
                distributed.reduce(part, group._global(rank), group=group.group)
        return parts[group.rank][:, :, : heights[group.rank]], None, None


def _padded(x: Tensor, height: int) -> Tensor:
    """Append rows of zeros to a map: all processes must send equally much."""
    padded = x.new_zeros(x.shape[0], x.shape[1], height, x.shape[3])
    padded[:, :, : x.shape[2]] = x
    return padded
