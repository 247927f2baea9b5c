"""The same as ``xcit-mm stats``; what it does is in xcit_mm_cli/stats.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'stats')

if __name__ == '__main__':
    sys.exit(main())
