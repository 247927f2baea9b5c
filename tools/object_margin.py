"""See ``python tools/object_margin.py --help``; what it does is in xcit_mm/cli/object_margin.py."""

from xcit_mm.cli.common import command
from xcit_mm.cli.object_margin import main

if __name__ == '__main__':
    command(main)()
