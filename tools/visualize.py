"""The same as ``xcit-mm visualize``; what it does is in xcit_mm/cli/visualize.py."""

import sys

from xcit_mm_cli import run

if __name__ == '__main__':
    sys.exit(run('visualize'))
