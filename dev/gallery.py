"""The pictures and numbers of docs/studies/attention.md, from the detector that the demo trains."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track

from dev.class_probe import train_class_attention, with_class_attention
from dev.margin import CocoObjects, auc
from dev.object_margin import best, coco_objects, margin_rows
from dev.pages import write_between_marks
from xcit_mm.errors import UserError
from xcit_mm.models.xcit import XCiT
from xcit_mm.tables import format_table
from xcit_mm.visualization.drawing import as_array
from xcit_mm.visualization.layers import spread
from xcit_mm.visualization.load import Subject
from xcit_mm.visualization.observe import Picture, draw, observe
from xcit_mm.visualization.pictures import make_picture
from xcit_mm_cli.arguments import DEFAULT_LAYERS
from xcit_mm_cli.common import explain_errors, load_config
from xcit_mm_cli.visualize import load

# Images of the validation set, counted from 0; the first is in all pictures.
IMAGES = (3, 5, 7)
DPI = 85
# Images and epochs for training class attention.
PROBE_IMAGES, PROBE_EPOCHS = 600, 20


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
    """The config and the newest checkpoint of a training run."""
    configs = sorted(folder.glob('*.py'))
    checkpoints = sorted(folder.glob('*.pth'), key=lambda path: path.stat().st_mtime)
    if not configs or not checkpoints:
        raise UserError(
            f'{folder} has no config and checkpoint of a trained detector. "make demo" trains one, '
            'or "python tools/train.py configs/detection/mask_rcnn_xcit_n12_8_shapes.py '
            f'--work-dir {folder}".'
        )
    return configs[0], checkpoints[-1]


def probe(subject: Subject, train: CocoObjects, val: CocoObjects) -> tuple[Subject, float]:
    """A classifier on the detector's trunk, and its mean AUC over the classes."""
    if not isinstance(subject.backbone, XCiT):
        raise UserError('The gallery needs a detector.')
    torch.manual_seed(0)
    labels = train.labels()
    classifier = with_class_attention(subject.backbone, len(labels[0]))
    images = (image for image, _ in track(train, description='tokens'))
    train_class_attention(
        classifier, zip(images, labels, strict=True), subject.preprocess, PROBE_EPOCHS
    )
    with torch.no_grad():
        logits = torch.cat([classifier(subject.preprocess(image)) for image, _ in val])
    truth = torch.tensor(val.labels()).bool()
    aucs = [auc(*(logits[on, c].numpy() for on in (truth[:, c], ~truth[:, c])))
            for c in range(truth.shape[1])]  # fmt: skip
    return Subject(classifier, subject.preprocess, True), sum(aucs) / len(aucs)


def make(picture: Picture, subject: Subject, image: np.ndarray, path: Path) -> None:
    """Write one picture of one image."""
    observe(subject.backbone, subject.preprocess(image), [picture])
    pixels = as_array(draw([picture], image), DPI)
    # A palette makes the files five times smaller.
    drawn = Image.fromarray(pixels)
    drawn = drawn.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    drawn.save(path, optimize=True)


def make_all(subject: Subject, classifier: Subject, val: CocoObjects, folder: Path) -> None:
    """Write all pictures."""
    layers = spread(len(subject.backbone.layers), DEFAULT_LAYERS)
    images = [image for i, (image, _) in enumerate(val) if i in IMAGES]
    for i, image in enumerate(images):
        # The first image shows all layers, like the table.
        picture = make_picture('magnitude', subject, layers if i else None)
        make(picture, subject, image, folder / f'visualization_magnitude_{i + 1}.png')
        picture = make_picture('class_attention', classifier)
        make(picture, classifier, image, folder / f'visualization_class_attention_{i + 1}.png')
    for name in ('covariance', 'pyramid'):
        picture = make_picture(name, subject, layers)
        make(picture, subject, images[0], folder / f'visualization_{name}.png')


def main(argv: Sequence[str] | None = None) -> int:
    return explain_errors(make_gallery, parse_args(argv))


def make_gallery(args: argparse.Namespace) -> int:
    config, checkpoint = find_run(args.run)
    if not args.page.is_file():
        raise UserError(f'There is no page {args.page}; run this in the root of the repository.')
    cfg = load_config(str(config))
    subject = load(str(checkpoint), cfg, 'cpu')
    val = coco_objects(cfg, 'val_dataloader')
    rows = margin_rows(subject, val)
    classifier, class_auc = probe(subject, coco_objects(cfg, 'train_dataloader', PROBE_IMAGES), val)
    folder = args.page.parent / 'images'
    folder.mkdir(exist_ok=True)
    make_all(subject, classifier, val, folder)
    _, sentence = best(rows)
    table = format_table(rows, 'markdown')
    numbers = {
        'margin': f'\nOver {len(val)} validation images:\n\n{table}\n\n{sentence}\n',
        'classes': f'It does so with a mean AUC of {class_auc:.2f} on the validation images.',
    }
    write_between_marks(args.page, numbers)
    made = sorted(folder.glob('visualization_*.png'))
    size = sum(path.stat().st_size for path in made)
    print(f'{sentence}\n{len(made)} pictures ({size / 1e6:.1f} MB) in {folder}; page: {args.page}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
