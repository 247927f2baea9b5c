"""``python -m xcit_mm_cli``: the same as ``xcit-mm``."""

import sys

from .app import main

if __name__ == '__main__':
    sys.exit(main())
