"""The same as ``xcit-mm merge``; what it does is in xcit_mm_cli/merge.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'merge')

if __name__ == '__main__':
    sys.exit(main())
