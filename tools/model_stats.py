"""Parameters and GFLOPs of the paper's models, ours beside the paper's."""

import argparse

from xcit_mm.stats import COUNTING_RULE, HEADS_RULE, classifier_table, heads_table
from xcit_mm.tables import FORMATS, write_table


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=f'Counting rule: {COUNTING_RULE}')
    parser.add_argument(
        '--paper',
        action='store_true',
        help="the parameter columns of the paper's COCO and ADE20k tables instead",
    )
    parser.add_argument('--format', choices=FORMATS, default='text', help='default: %(default)s')
    parser.add_argument('--out', metavar='FILE', help='write to a file, not to the screen')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if not args.paper:
        write_table('Classifiers', classifier_table(), args.format, args.out, COUNTING_RULE)
        return
    rows = heads_table()
    agree = sum(row['agree'] == 'yes' for row in rows)
    note = f'{HEADS_RULE}\n{agree} of {len(rows)} cells agree with the paper.'
    write_table('Detectors and segmentors', rows, args.format, args.out, note)


if __name__ == '__main__':
    main()
