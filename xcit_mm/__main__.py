"""``python -m xcit_mm``: the doctor."""

import sys

from xcit_mm_cli import run

if __name__ == '__main__':
    sys.exit(run('doctor', prog='python -m xcit_mm'))
