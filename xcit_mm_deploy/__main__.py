"""``python -m xcit_mm_deploy``: the old name of ``python -m xcit_mm_runtime``."""

import sys

from xcit_mm_runtime.__main__ import main

if __name__ == '__main__':
    sys.exit(main())
