"""The same as ``xcit-mm stats``; what it does is in xcit_mm/cli/stats.py."""

import sys

from xcit_mm_cli import run

if __name__ == '__main__':
    sys.exit(run('stats'))
