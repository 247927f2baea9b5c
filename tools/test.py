"""See ``python tools/test.py --help``; what it does is in xcit_mm/cli/test.py."""

from xcit_mm.cli.common import command
from xcit_mm.cli.test import main

if __name__ == '__main__':
    command(main)()
