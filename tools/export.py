"""The same as ``xcit-mm export``; what it does is in xcit_mm_cli/export.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'export')

if __name__ == '__main__':
    sys.exit(main())
