"""The same as ``xcit-mm convert``; what it does is in xcit_mm/cli/convert.py."""

import sys

from xcit_mm_cli import run

if __name__ == '__main__':
    sys.exit(run('convert'))
