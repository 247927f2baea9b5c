"""The pictures and numbers of docs/studies/attention.md, from the detector that the demo trains."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dev.class_probe import mean_auc, train_probe
from dev.margin import describe_largest, load_samples, margin_rows
from dev.pages import write_between_marks
from xcit_mm.engine.config import load_config
from xcit_mm.errors import UserError
from xcit_mm.models.xcit import XCiT
from xcit_mm.tables import format_table
from xcit_mm.visualization.drawing import as_array
from xcit_mm.visualization.layers import spread
from xcit_mm.visualization.load import Subject, load_subject
from xcit_mm.visualization.observe import Picture, draw, observe
from xcit_mm.visualization.pictures import make_picture
from xcit_mm_cli.common import explain_errors

# Images of the validation set, counted from 0; the first is in all pictures.
IMAGES = (3, 5, 7)
DPI = 85
LAYERS = 6
# Images for training class attention.
PROBE_IMAGES = 600


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.gallery',
        description='Make the pictures and the numbers of docs/studies/attention.md with a trained '
        'detector. Takes a few minutes.',
    )
    parser.add_argument(
        '--run',
        type=Path,
        default=Path('work_dirs/demo/detector'),
        help='the folder of a training run: its config and checkpoint (default: %(default)s)',
    )
    parser.add_argument(
        '--page',
        type=Path,
        default=Path('docs/studies/attention.md'),
        help='the page; pictures go to images/ next to it (default: %(default)s)',
    )
    return parser.parse_args(argv)


def find_run(folder: Path) -> tuple[Path, Path]:
    """Return the config and the newest checkpoint of a training run."""
    configs = sorted(folder.glob('*.py'))
    checkpoints = sorted(folder.glob('*.pth'), key=lambda path: path.stat().st_mtime)
    if not configs or not checkpoints:
        raise UserError(
            f'{folder} has no config and checkpoint of a trained detector. "make demo" trains one.'
        )
    return configs[0], checkpoints[-1]


def make(picture: Picture, subject: Subject, image: np.ndarray, path: Path) -> None:
    """Write one picture of one image."""
    observe(subject.backbone, subject.preprocess(image), [picture])
    pixels = as_array(draw([picture], image), DPI)
    # A palette makes the files five times smaller.
    drawn = Image.fromarray(pixels)
    drawn = drawn.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    drawn.save(path, optimize=True)


def make_all(
    subject: Subject, classifier: Subject, images: Sequence[np.ndarray], folder: Path
) -> None:
    """Write all pictures."""
    layers = spread(len(subject.backbone.layers), LAYERS)
    for i, image in enumerate(images):
        # The first image shows all layers, like the table.
        picture = make_picture('magnitude', subject, layers if i else None)
        make(picture, subject, image, folder / f'visualization_magnitude_{i + 1}.png')
        picture = make_picture('class_attention', classifier)
        make(picture, classifier, image, folder / f'visualization_class_attention_{i + 1}.png')
    for name in ('covariance', 'pyramid'):
        picture = make_picture(name, subject, layers)
        make(picture, subject, images[0], folder / f'visualization_{name}.png')


def work(args: argparse.Namespace) -> int:
    config, checkpoint = find_run(args.run)
    cfg = load_config(str(config))
    subject = load_subject(str(checkpoint), cfg)
    backbone, preprocess = subject.backbone, subject.preprocess
    if not isinstance(backbone, XCiT):
        raise UserError('The gallery needs a detector.')
    train, val = (
        load_samples(cfg, f'{split}_dataloader', limit)
        for split, limit in (('train', PROBE_IMAGES), ('val', None))
    )
    rows = margin_rows(backbone, cfg, val, preprocess)
    classifier = train_probe(backbone, train, preprocess)
    class_auc = mean_auc(classifier, val, preprocess)
    folder = args.page.parent / 'images'
    folder.mkdir(exist_ok=True)
    images = [val[i].image for i in IMAGES]
    make_all(subject, Subject(classifier, preprocess, True), images, folder)
    sentence = describe_largest(rows)
    table = format_table(rows, 'markdown')
    numbers = {
        'margin': f'\nOver {len(val)} validation images:\n\n{table}\n\n{sentence}\n',
        'classes': f'It does so with a mean AUC of {class_auc:.2f} on the validation images.',
    }
    made = sorted(folder.glob('visualization_*.png'))
    size = sum(path.stat().st_size for path in made)
    print(f'{sentence}\n{len(made)} pictures ({size / 1e6:.1f} MB) in {folder}')
    write_between_marks(args.page, numbers)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    return explain_errors(work, parse_args(argv))


if __name__ == '__main__':
    sys.exit(main())
