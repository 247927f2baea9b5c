"""``python -m xcit_mm.datasets``: make the embedded data set."""

import argparse
import sys
import time

from .make import make_shapes


def main() -> int:
    parser = argparse.ArgumentParser(
        prog='python -m xcit_mm.datasets',
        description="Make a data set of shapes in COCO's layout (FOLDER/coco) and in ADE20k's "
        '(FOLDER/ade). The same arguments give the same bytes.',
    )
    parser.add_argument('folder', nargs='?', default='data/shapes', help='default: %(default)s')
    parser.add_argument('--train', type=int, default=400, help='images (default: %(default)s)')
    parser.add_argument('--val', type=int, default=100, help='images (default: %(default)s)')
    parser.add_argument('--size', type=int, default=128, help='pixels (default: %(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    parser.add_argument(
        '--negatives',
        type=float,
        default=0.0,
        metavar='PART',
        help='part of the images with dark shapes on light grounds (default: %(default)s)',
    )
    parser.add_argument('--force', action='store_true', help='replace the folder if it exists')
    args = parser.parse_args()
    start = time.monotonic()
    try:
        root = make_shapes(
            args.folder, args.train, args.val, args.size, args.seed, args.negatives, args.force
        )
    except (FileExistsError, ValueError) as error:
        print(f'error: {error}; --help explains the arguments', file=sys.stderr)
        return 2
    seconds = time.monotonic() - start
    print(f'{args.train} + {args.val} images in {seconds:.1f} s: {root}/coco and {root}/ade')
    return 0


if __name__ == '__main__':
    sys.exit(main())
