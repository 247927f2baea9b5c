"""The same as ``xcit-mm test``; what it does is in xcit_mm_cli/test.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'test')

if __name__ == '__main__':
    sys.exit(main())
