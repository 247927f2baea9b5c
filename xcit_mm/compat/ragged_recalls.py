"""``--eval proposal_fast`` with today's numpy.

Obstacle: mmdet puts one matrix of overlaps an image into ``np.array``. Images have different
numbers of boxes, and since 1.24 numpy refuses to make an array of matrices of different shapes.

What this does: in the one module of mmdet that does it, such a list becomes an array of objects, as
it did before.
"""

from typing import Any

import numpy as np


class _RaggedNumpy:
    """numpy, but for ``array`` on lists of matrices of different shapes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def array(values: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        try:
            return np.array(values, *args, **kwargs)
        except ValueError:
            array = np.empty(len(values), dtype=object)
            array[:] = values
            return array


def apply() -> None:
    """Mend mmdet's computation of recalls."""
    from mmdet.evaluation.functional import recall

    if recall.np is np:
        recall.np = _RaggedNumpy()
