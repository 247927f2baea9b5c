"""The same as ``xcit-mm convert``; what it does is in xcit_mm_cli/convert.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'convert')

if __name__ == '__main__':
    sys.exit(main())
