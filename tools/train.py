"""The same as ``xcit-mm train``; what it does is in xcit_mm_cli/train.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'train')

if __name__ == '__main__':
    sys.exit(main())
