"""The same as ``xcit-mm visualize``; what it does is in xcit_mm_cli/visualize.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'visualize')

if __name__ == '__main__':
    sys.exit(main())
