"""See ``python tools/gallery.py --help``; what it does is in xcit_mm/cli/gallery.py."""

from xcit_mm.cli.common import command
from xcit_mm.cli.gallery import main

if __name__ == '__main__':
    command(main)()
