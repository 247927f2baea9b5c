"""``python -m xcit_mm``: the doctor."""

import argparse
import sys

from .doctor import examine, report


def main() -> int:
    parser = argparse.ArgumentParser(
        prog='python -m xcit_mm',
        description='Says whether detection and segmentation can run in this environment: the '
        'versions found and supported, and how to mend each problem. Exit status 0 if both can.',
    )
    parser.parse_args()
    checks = examine()
    print(report(checks))
    return any(check.problem and check.needed for check in checks)


if __name__ == '__main__':
    sys.exit(main())
