"""See ``python tools/visualize.py --help``; what it does is in xcit_mm/cli/visualize.py."""

from xcit_mm.cli.common import command
from xcit_mm.cli.visualize import main

if __name__ == '__main__':
    command(main)()
