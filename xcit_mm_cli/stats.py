"""``xcit-mm stats``: count parameters and GFLOPs of the paper's models."""

import argparse

from .options import add_flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Count the parameters and GFLOPs of the paper's models, next to the paper's own numbers. "
        'The counting rule is printed below the table.'
    )
    add_flag(
        parser, '--paper', "the parameter columns of the paper's COCO and ADE20k tables instead"
    )
    parser.add_argument(
        '--format', choices=('text', 'markdown', 'json'), default='text', help='default: text'
    )
    parser.add_argument('--out', metavar='FILE', help='write to a file, not to the screen')


def run(args: argparse.Namespace) -> int:
    from xcit_mm.stats import COUNTING_RULE, HEADS_RULE, classifier_table, heads_table
    from xcit_mm.tables import format_table
    from xcit_mm_runtime.files import write_atomically

    from .common import check_output

    check_output(args.out, force=True)
    if args.paper:
        title, rows, note = 'Detectors and segmentors', heads_table(), HEADS_RULE
        agree = sum(row['agree'] == 'yes' for row in rows)
        note += f'\n{agree} of {len(rows)} cells agree with the paper.'
    else:
        title, rows, note = 'Classifiers', classifier_table(), COUNTING_RULE
    table = format_table(rows, args.format)
    if args.format != 'json':
        heading = f'## {title}' if args.format == 'markdown' else title
        table = f'{heading}\n\n{table}\n\n{note}'
    if args.out is None:
        print(table)
    else:
        write_atomically(args.out, table + '\n')
        print(f'{title}: {len(rows)} rows written to {args.out}')
    return 0
