"""The same as ``xcit-mm test``; what it does is in xcit_mm/cli/test.py."""

import sys

from xcit_mm_cli import run

if __name__ == '__main__':
    sys.exit(run('test'))
