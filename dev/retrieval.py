"""Measures retrieval on photographs: ``python -m dev.retrieval PHOTOS... --checkpoint FILE``.

Queries are photographs that were cropped, distorted and saved as bad JPEGs, mildly or strongly.
Each should find the original among all photographs; its neighbors in a video are ignored. They are
written in the layout of Revisited Oxford, where "medium" are all queries and "hard" are those that
were distorted strongly, and evaluated by ``xcit-mm retrieve``. ``--synthetic N`` indexes and
searches N descriptors of random numbers instead, and prints time and memory.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np

from xcit_mm.retrieval.descriptors import Describer, Settings, Words
from xcit_mm.retrieval.index import SHARD, Index
from xcit_mm.tables import format_table
from xcit_mm_cli import main as xcit_mm
from xcit_mm_runtime import read_image
from xcit_mm_runtime.files import write_atomically
from xcit_mm_runtime.inputs import find_images

# How many photographs of each folder are queries, and how many neighbors of them are ignored.
QUERIES, NEIGHBORS = 15, 3
WAYS = {
    'class token': ['--descriptor', 'class_token'],
    'VLAD, k = 256': ['--descriptor', 'vlad', '--codebook', '256'],
    'ASMK, k = 1024': ['--descriptor', 'asmk', '--codebook', '1024'],
}


def distort(image: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Crop, turn, recolor and compress an image, more with a strength of 1 than of 0.3."""
    height, width = image.shape[:2]
    part = 1 - 0.5 * strength
    left, top = rng.uniform(0, 1 - part, 2) * (width, height)
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-12, 12) * strength, 1)
    image = cv2.warpAffine(image, turn, (width, height), borderMode=cv2.BORDER_REFLECT)
    image = image[round(top) :, round(left) :][: round(part * height), : round(part * width)]
    gains = 1 + rng.uniform(-0.4, 0.4, 3) * strength
    noisy = image * gains + rng.normal(0, 15 * strength, image.shape)
    quality = [cv2.IMWRITE_JPEG_QUALITY, round(90 - 60 * strength)]
    content = cv2.imencode('.jpg', np.clip(noisy, 0, 255).astype(np.uint8), quality)[1]
    return np.asarray(cv2.imdecode(content, cv2.IMREAD_COLOR))


def write_benchmark(folder: Path, sources: list[str]) -> str:
    """Write queries and a ground truth, and link the photographs; return what was written."""
    rng = np.random.default_rng(0)
    (folder / 'photos').mkdir()
    names: list[str] = []
    queries: list[str] = []
    truth: list[dict[str, list[int]]] = []
    for source in sources:
        photos, first = find_images([source]), len(names)
        chosen = set(np.linspace(0, len(photos) - 1, min(QUERIES, len(photos)), dtype=int).tolist())
        for number, path in enumerate(photos):
            name = f'{len(names):05d}'
            os.symlink(path.absolute(), folder / 'photos' / f'{name}{path.suffix}')
            names.append(name)
            if number not in chosen:
                continue
            near = range(max(0, number - NEIGHBORS), min(len(photos), number + NEIGHBORS + 1))
            junk = [first + i for i in near if i != number]
            for kind, strength in (('easy', 0.3), ('hard', 1.0)):
                answer = {'easy': [], 'hard': [], 'junk': junk, kind: [first + number]}
                query = f'q{len(queries):05d}'
                changed = distort(read_image(path), rng, strength)
                cv2.imwrite(str(folder / 'photos' / f'{query}.png'), changed)
                queries.append(query)
                truth.append(answer)
    content = {'imlist': names, 'qimlist': queries, 'gnd': truth}
    write_atomically(folder / 'gnd_photos.json', json.dumps(content))
    return f'{len(queries)} queries, {len(names)} photographs'


def measure(sources: list[str], options: list[str], resolutions: list[str]) -> str:
    """Return a table of mAP."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        print(write_benchmark(Path(folder), sources))
        for resolution in resolutions:
            for way, words in WAYS.items():
                start = time.monotonic()
                text = io.StringIO()
                with contextlib.redirect_stdout(text):
                    given = [*words, *options, '--resolution', resolution]
                    xcit_mm(['retrieve', 'evaluate', folder, *given])
                medium, hard = (float(line.split()[1]) for line in text.getvalue().splitlines())
                seconds = round(time.monotonic() - start)
                row = {'descriptor': way, 'resolution': int(resolution), 'all queries': medium}
                rows.append(row | {'strongly distorted': hard, 'seconds': seconds})
                print(rows[-1], flush=True)
    return format_table(rows, 'markdown')


def measure_synthetic(count: int) -> str:
    """Return a table of times and memory, with descriptors of random numbers."""
    rows = []
    rng = np.random.default_rng(0)
    # Of 1,728 patches, as 768x576 has with patches of 16 pixels; words are as frequent as others.
    ways = {
        'class token, 128': Settings(dims=128),
        'ASMK, k = 1024': Settings(descriptor='asmk', codebook=1024),
        'ASMK, k = 65536': Settings(descriptor='asmk', codebook=65536),
        'VLAD, k = 256': Settings(descriptor='vlad', codebook=256),
    }
    for name, settings in ways.items():

        def describe(settings: Settings = settings) -> np.ndarray | Words:
            if settings.descriptor != 'asmk':
                x = rng.standard_normal(128 * max(1, settings.codebook * (not settings.dims)), 'f')
                return x / np.linalg.norm(x)
            words = np.unique(rng.integers(0, settings.codebook, 1728))
            return Words(words, rng.integers(0, 256, (len(words), 16), np.uint8))

        class Nothing:
            has_vector = True

            def checksum(self) -> int:
                return 0

        with tempfile.TemporaryDirectory() as folder:
            index = Index.create(folder, Describer(Nothing(), settings, {}))  # type: ignore[arg-type]
            adding = 0.0
            for start in range(0, count, SHARD):
                names = [f'/photos/{i:06d}.jpg' for i in range(start, min(count, start + SHARD))]
                described = [describe() for _ in names]
                begin = time.monotonic()
                index.add(names, described)
                adding += time.monotonic() - begin
            begin = time.monotonic()
            index = Index(folder)
            opening = time.monotonic() - begin
            begin = time.monotonic()
            for _ in range(3):
                index.search(describe())
            searching = (time.monotonic() - begin) / 3
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
        rows.append({
            'descriptor': name, 'GB on disk': size / 1e9, 'seconds to write': adding,
            'seconds to open': opening, 'seconds per query': searching,
            'peak MB so far': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return format_table(rows, 'markdown')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('photos', nargs='*', help='folders')
    parser.add_argument('--resolutions', nargs='+', default=['224', '384', '512'])
    parser.add_argument('--synthetic', type=int, metavar='N')
    args, options = parser.parse_known_args()
    if args.synthetic:
        print(measure_synthetic(args.synthetic))
    else:
        print(measure(args.photos, options, args.resolutions))


if __name__ == '__main__':
    main()
