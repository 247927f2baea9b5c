"""Parameters and GFLOPs of the paper's models, ours beside the paper's."""

import argparse

from xcit_mm.stats import COUNTING_RULE, classifier_table
from xcit_mm.tables import FORMATS, write_table


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=f'Counting rule: {COUNTING_RULE}')
    parser.add_argument('--format', choices=FORMATS, default='text', help='default: %(default)s')
    parser.add_argument('--out', metavar='FILE', help='write to a file, not to the screen')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    write_table('Classifiers', classifier_table(), args.format, args.out, COUNTING_RULE)


if __name__ == '__main__':
    main()
