"""The same as ``xcit-mm convert-data``; what it does is in xcit_mm_cli/convert_data.py."""

import functools
import sys

from xcit_mm_cli import run

main = functools.partial(run, 'convert-data')

if __name__ == '__main__':
    sys.exit(main())
