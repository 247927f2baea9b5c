"""``xcit-mm retrieve``: find images like another one, and measure how well that works."""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .options import CHECKPOINT_HELP, add_device, positive, seed

# How images are described: option -> its arguments. Those of flags are their help.
SETTINGS: dict[str, dict[str, Any]] = {
    'checkpoint': {'help': f'weights: {CHECKPOINT_HELP}'},
    'config': {'help': "for an XCiT of a size that is not one of the paper's"},
    'model': {'help': 'a convolutional network of timm, such as resnet50 (default: XCiT)'},
    'descriptor': {'choices': ('class_token', 'vlad', 'asmk'), 'help': '(default: class_token)'},
    'resolution': {'type': positive, 'help': 'side of resized images (default: 768)'},
    'side': {'choices': ('long', 'short', 'both'), 'help': 'which side that is (default: long)'},
    'codebook': {'type': positive, 'help': 'vlad, asmk: number of words (default: 1024)'},
    'patch-dims': {'type': positive, 'help': 'vlad, asmk: PCA of patches (default: 128)'},
    'dims': {'type': positive, 'help': 'class_token, vlad: PCA of the result (default: none)'},
    'power': {'type': float, 'help': 'vlad: exponent of its numbers (default: 0.5)'},
    'alpha': {'type': float, 'help': 'asmk: exponent of similarities (default: 3.0)'},
    'threshold': {'type': float, 'help': 'asmk: least similarity that counts (default: 0.0)'},
    'assignments': {'type': positive, 'help': 'asmk: words per patch of a query (default: 1)'},
    'learn-images': {'type': positive, 'help': 'most images to learn from (default: 2000)'},
    'seed': {'type': seed, 'help': 'of the choice of images and words (default: 0)'},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'index: describe images and add them to an index. query: find the images of an index that '
        'are most like others, and write a page of pictures. evaluate: print the mean average '
        'precision on Revisited Oxford or Holidays. Exit status 1 if an image was skipped.'
    )
    parser.add_argument('action', choices=('index', 'query', 'evaluate'))
    parser.add_argument(
        'inputs', nargs='+', metavar='IMAGE|FOLDER|GLOB', help='images, or a folder to evaluate'
    )
    parser.add_argument(
        '--index',
        help='folder of the index, which is made or extended (default: work_dirs/retrieve/index; '
        'for evaluate, a temporary one)',
    )
    parser.add_argument(
        '--most', type=positive, default=20, help='query: images to show (default: %(default)s)'
    )
    parser.add_argument(
        '--out-dir',
        default='work_dirs/retrieve',
        help='query: folder for index.html and results.json (default: %(default)s)',
    )
    add_device(parser)
    group = parser.add_argument_group('how images are described, for a new index')
    for name, options in SETTINGS.items():
        group.add_argument(f'--{name}', **options)
    for name, text in (('whiten', 'PCA with whitening'), ('real', 'asmk: keep more than signs')):
        group.add_argument(f'--{name}', action='store_true', default=None, help=text)
    group.add_argument(
        '--learn-from',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB',
        help='images that PCA and codebook are learned from (default: those of the index)',
    )


def run(args: argparse.Namespace) -> int:
    import torch

    from .common import check_checkpoint, check_device

    check_checkpoint(args.checkpoint)
    check_device(args.device)
    args.device = args.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    return {'index': run_index, 'query': run_query, 'evaluate': run_evaluate}[args.action](args)


def run_index(args: argparse.Namespace) -> int:
    from xcit_mm_runtime.inputs import find_images

    from .common import print_left_out

    folder = args.index or 'work_dirs/retrieve/index'
    print_left_out(args.inputs)
    index, _, skipped = build(args, folder, find_images(args.inputs))
    print(f'{len(index.names)} images in the index {folder}')
    return 1 if skipped else 0


def run_query(args: argparse.Namespace) -> int:
    from xcit_mm.retrieval import Index
    from xcit_mm.retrieval.page import render
    from xcit_mm_runtime import read_image
    from xcit_mm_runtime.files import write_atomically
    from xcit_mm_runtime.inputs import find_images
    from xcit_mm_runtime.progress import track

    index = Index(args.index or 'work_dirs/retrieve/index')
    check_settings(index, args)
    describer = index.describer(args.device)
    results, skipped, out_dir = {}, [], Path(args.out_dir)
    for path in track(find_images(args.inputs), 'queries'):
        try:
            found = index.search(describer(read_image(path), is_query=True), args.most + 1)
        except ValueError as error:
            skipped.append(f'skipped {path}: {error}')
            continue
        # The image itself is no news.
        others = [pair for pair in found if pair[0] != os.path.abspath(path)]
        results[str(path)] = others[: args.most]
    write_atomically(out_dir / 'index.html', render(results, index))
    write_atomically(out_dir / 'results.json', json.dumps(results, indent=1))
    print(*skipped, f'{len(results)} queries; {out_dir / "index.html"} shows the results', sep='\n')
    return 1 if skipped else 0


def run_evaluate(args: argparse.Namespace) -> int:
    from xcit_mm.errors import UserError
    from xcit_mm.retrieval.benchmarks import find_benchmark, mean_average_precision
    from xcit_mm_runtime import read_image
    from xcit_mm_runtime.progress import track

    if len(args.inputs) > 1:
        raise UserError(f'"evaluate" takes one folder, not {len(args.inputs)} inputs.')
    benchmark = find_benchmark(args.inputs[0])
    with tempfile.TemporaryDirectory() as temporary:
        index, describer, skipped = build(args, args.index or temporary, benchmark.images)
        if skipped:
            raise UserError('A benchmark needs all of its images.')
        queries = []
        for path, box in track(benchmark.queries, 'queries'):
            whole = image = read_image(path)
            if box is not None:
                left, top, right, bottom = (max(0, round(float(side))) for side in box)
                image = whole[top:bottom, left:right]
            if not image.size:
                raise UserError(f'The box of the query {path} is empty: {list(box or ())}.')
            try:
                queries.append(describer(image, is_query=True, whole=whole))
            except ValueError as error:
                raise UserError(f'The query {path} cannot be described: {error}') from None
        places = {name: number for number, name in enumerate(index.names)}
        scores = index.scores(queries)[:, [places[os.path.abspath(p)] for p in benchmark.images]]
    for name, answers in benchmark.answers.items():
        print(f'{name} {mean_average_precision(scores, answers):.1f}')
    return 0


def build(args: argparse.Namespace, folder: str, images: list[Path]) -> Any:
    """Make or extend an index, see ``build_index``; print which images were skipped."""
    from xcit_mm.errors import UserError
    from xcit_mm.retrieval import Index, Settings, build_index
    from xcit_mm_runtime.inputs import find_images

    if Path(folder, 'index.json').is_file():
        check_settings(Index(folder), args)
    elif not (args.checkpoint or args.model):
        raise UserError('A new index needs --checkpoint, or --model for a network of timm.')
    samples = find_images(args.learn_from) if args.learn_from else None
    settings = Settings(**given_settings(args))
    result = build_index(folder, settings, images, samples, args.device)
    for path, reason in result[2].items():
        print(f'skipped {path}: {reason}')
    return result


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return how images are described, as far as the command line says it."""
    names = [name.replace('-', '_') for name in (*SETTINGS, 'whiten', 'real')]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    for name in ('checkpoint', 'config'):  # queries may come from another folder
        if '::' not in (path := given.get(name, '::')) and '://' not in path:
            given[name] = str(Path(path).expanduser().absolute())
    return given


def check_settings(index: Any, args: argparse.Namespace) -> None:
    """Raise an error if the command line asks for other descriptors than an index has."""
    from xcit_mm.errors import UserError

    saved = vars(index.settings)
    if other := [name for name, value in given_settings(args).items() if value != saved[name]]:
        now = ', '.join(f'{name}={saved[name]}' for name in other)
        raise UserError(f'The index {index.folder} was made with {now}: choose another --index.')
    if args.learn_from:
        raise UserError(f'--learn-from is for a new index, and {index.folder} exists.')
