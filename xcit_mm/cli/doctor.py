"""Report what is missing in this environment."""

from collections.abc import Sequence

from xcit_mm_cli import parse_args

from ..doctor import examine, report


# Without the other commands' decorator: its module imports packages that may be missing.
def main(argv: Sequence[str] | None = None) -> int:
    parse_args('doctor', argv)
    checks = examine()
    print(report(checks))
    return int(any(check.problem and check.needed for check in checks))
