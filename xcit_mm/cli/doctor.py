"""Say what is missing in this environment."""

from collections.abc import Sequence

from xcit_mm_cli import parse_args

from ..doctor import examine, report


# Without the decorator of the other commands, whose module imports what may be missing.
def main(argv: Sequence[str] | None = None) -> int:
    parse_args('doctor', argv)
    checks = examine()
    print(report(checks))
    return int(any(check.problem and check.needed for check in checks))
