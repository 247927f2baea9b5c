"""The same as ``xcit-mm demo``; what it does is in xcit_mm_cli/demo.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'demo')

if __name__ == '__main__':
    sys.exit(main())
