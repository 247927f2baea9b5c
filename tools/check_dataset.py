"""See ``python tools/check_dataset.py --help``; it is in xcit_mm/cli/check_dataset.py."""

from xcit_mm.cli.check_dataset import main
from xcit_mm.cli.common import command

if __name__ == '__main__':
    command(main)()
