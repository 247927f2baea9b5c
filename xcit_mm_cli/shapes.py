"""``xcit-mm shapes``: draw a dataset of shapes."""

import argparse
import time

from .options import add_flag, fraction, positive, seed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw a dataset of shapes in COCO's layout (FOLDER/coco) and in ADE20k's (FOLDER/ade). "
        'The same arguments give the same bytes.'
    )
    parser.add_argument('folder', nargs='?', default='data/shapes', help='default: %(default)s')
    for name, default, what in (
        ('train', 400, 'training images'),
        ('val', 100, 'validation images'),
        ('size', 128, 'height and width in pixels'),
    ):
        parser.add_argument(
            f'--{name}', type=positive, default=default, help=f'{what} (default: %(default)s)'
        )
    parser.add_argument('--seed', type=seed, default=0, help='default: %(default)s')
    parser.add_argument(
        '--negatives',
        type=fraction,
        default=0.0,
        metavar='PART',
        help='fraction of images with dark shapes on light backgrounds (default: %(default)s)',
    )
    add_flag(parser, '--force', 'replace the folder if it exists')


def run(args: argparse.Namespace) -> int:
    from xcit_mm.datasets.shapes import make_shapes
    from xcit_mm.errors import UserError

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
