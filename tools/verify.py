"""The same as ``xcit-mm verify``."""

import sys

from xcit_mm_cli import run_command

if __name__ == '__main__':
    sys.exit(run_command('verify'))
