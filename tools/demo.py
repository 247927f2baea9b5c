"""The same as ``xcit-mm demo``; what it does is in xcit_mm/cli/demo.py."""

import sys

from xcit_mm_cli import run

if __name__ == '__main__':
    sys.exit(run('demo'))
