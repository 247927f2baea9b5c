"""Count parameters and GFLOPs of the paper's models."""

import argparse

from xcit_mm.stats import COUNTING_RULE, HEADS_RULE, classifier_table, heads_table
from xcit_mm.tables import write_table
from xcit_mm_runtime.files import check_writable

from .common import command


@command('stats')
def main(args: argparse.Namespace) -> int:
    if args.out:
        check_writable(args.out)
    if not args.paper:
        write_table('Classifiers', classifier_table(), args.format, args.out, COUNTING_RULE)
        return 0
    rows = heads_table()
    agree = sum(row['agree'] == 'yes' for row in rows)
    note = f'{HEADS_RULE}\n{agree} of {len(rows)} cells agree with the paper.'
    write_table('Detectors and segmentors', rows, args.format, args.out, note)
    return 0
