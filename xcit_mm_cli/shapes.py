"""Draw a dataset of shapes."""

import argparse
import time

from xcit_mm.datasets.shapes import make_shapes
from xcit_mm.errors import UserError

from .common import command


@command('shapes')
def main(args: argparse.Namespace) -> int:
    start = time.monotonic()
    try:
        root = make_shapes(
            args.folder,
            train=args.train,
            val=args.val,
            size=args.size,
            seed=args.seed,
            negatives=args.negatives,
            overwrite=args.force,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    seconds = time.monotonic() - start
    print(f'{args.train} + {args.val} images in {seconds:.1f} s: {root}/coco and {root}/ade')
    return 0
