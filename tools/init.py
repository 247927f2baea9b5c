"""The same as ``xcit-mm init``; what it does is in xcit_mm_cli/init.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'init')

if __name__ == '__main__':
    sys.exit(main())
