"""See ``python tools/infer.py --help``; what it does is in xcit_mm/cli/infer.py."""

from xcit_mm.cli.common import command
from xcit_mm.cli.infer import main

if __name__ == '__main__':
    command(main)()
