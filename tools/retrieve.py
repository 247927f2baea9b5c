"""The same as ``xcit-mm retrieve``."""

import sys

from xcit_mm_cli import run_command

if __name__ == '__main__':
    sys.exit(run_command('retrieve'))
