"""The same as ``xcit-mm check``; what it does is in xcit_mm_cli/check.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'check')

if __name__ == '__main__':
    sys.exit(main())
