"""``python -m dev.control``: the demo's segmentor with and without cross-covariance attention."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from xcit_mm.demo.run import headline, start_record, write_record
from xcit_mm.demo.steps import SEGMENTOR, read_metrics, run_step, steps
from xcit_mm.tables import format_metric
from xcit_mm_cli.common import explain_errors

RECORD = 'control.json'
# Options of training and test that remove the attention from the backbone.
WITHOUT_XCA = ('model.backbone.type=AblatedXCiT', 'model.backbone.ablation=without_xca')
# Half of the images are negatives: only the whole image tells shape from ground.
NEGATIVES = (
    'shapes.root=data/shapes_negatives',
    'shapes.negatives=0.5',
    *(
        f'{split}_dataloader.dataset.data_root=data/shapes_negatives/ade'
        for split in ('train', 'val', 'test')
    ),
)


def run_control(out_dir: Path, seed: int) -> dict[str, float]:
    """Train the segmentor with and without XCA on images, half of them negatives.

    Args:
        out_dir (Path): Folder of the control.
        seed (int): Seed of the training.

    Returns:
        dict[str, float]: The mIoU of both.
    """
    path = out_dir / RECORD
    record = start_record(path, seed)
    numbers: dict[str, float] = {}
    for name, options in (('with XCA', ()), ('without XCA', WITHOUT_XCA)):
        folder = out_dir / name.replace(' ', '_')
        train, evaluate, _ = steps(SEGMENTOR, folder, seed, options=(*NEGATIVES, *options))
        for step in (train, evaluate):
            step = dataclasses.replace(step, name=f'{step.name} {name}')
            run_step(step, record['seconds'])
            write_record(path, record)
        metrics = read_metrics(folder / SEGMENTOR.name / 'metrics.json')
        numbers |= {f'{key} {name}': value for key, value in headline(SEGMENTOR, metrics).values()}
    record['metrics'] = numbers
    write_record(path, record)
    return numbers


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.control',
        description='Train Semantic FPN with and without cross-covariance attention, as in the '
        "paper's ablation. Half of the images have dark shapes on light grounds. Takes ten "
        'minutes. If interrupted, rerun it to resume.',
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of the training (default: 0)')
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('work_dirs/demo_control'),
        help='where everything goes (default: %(default)s)',
    )
    return explain_errors(print_control, parser.parse_args(argv))


def print_control(args: argparse.Namespace) -> int:
    numbers = run_control(args.out_dir, args.seed)
    print('  '.join(f'{name} {format_metric(name, value)}' for name, value in numbers.items()))
    print(f'Numbers: {args.out_dir / RECORD}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
