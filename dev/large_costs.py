"""Prints the projections of docs/studies/large_images.md: ``python -m dev.large_costs``."""

from collections.abc import Iterator

from xcit_mm.large.costs import Machines, project
from xcit_mm.models import VARIANTS

# Assumed, not measured: a GPU sustains 50·10¹² multiply-adds per second; 200 GB/s within a node,
# 25 GB/s between nodes; 20 µs per message.
MACHINES = {
    '8 GPUs': Machines(8, 50e12, 200e9, 20e-6),
    '64 nodes of 8 GPUs': Machines(512, 50e12, 25e9, 20e-6),
}
GIGAPIXELS = (1, 10, 100)
ARCH, PATCH_SIZE = 's12', 16


def rows() -> Iterator[str]:
    """The table, line by line."""
    yield (
        '| image | machines | compute | exchange | tokens | sent per layer | all tokens instead | '
        'training keeps |'
    )
    yield '|---|---|---|---|---|---|---|---|'
    variant = VARIANTS[ARCH]
    for size in GIGAPIXELS:
        for name, machines in MACHINES.items():
            cost = project(variant.embed_dims, variant.depth, PATCH_SIZE, size * 2**30, machines)
            cells = [
                f'{size} gigapixel' + ('s' if size > 1 else ''),
                name,
                f'{1000 * cost.compute:,.0f} ms',
                f'{1000 * cost.exchange:.0f} ms',
                f'{cost.tokens / 2**30:.3g} GB',
                f'{cost.sent / 2**20:.3g} MB',
                f'{cost.gathered / 2**30:.3g} GB',
                f'{cost.training / 2**30:,.0f} GB',
            ]
            yield f'| {" | ".join(cells)} |'


if __name__ == '__main__':
    print('\n'.join(rows()))
