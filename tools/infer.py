"""The same as ``xcit-mm infer``; what it does is in xcit_mm_cli/infer.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'infer')

if __name__ == '__main__':
    sys.exit(main())
