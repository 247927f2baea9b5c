"""See ``python tools/train.py --help``; what it does is in xcit_mm/cli/train.py."""

from xcit_mm.cli.common import command
from xcit_mm.cli.train import main

if __name__ == '__main__':
    command(main)()
