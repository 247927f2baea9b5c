"""A long run of inference in one process: nothing may fail, change or grow.

In each round, a detector and a segmentor process the same images, as ``tools/infer.py`` does. Each
round must write the same bytes as the first, and memory must not grow after the first. Each round
ends with several processes that read one checkpoint at the same time.
"""

import argparse
import hashlib
import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from dev.measure import memory_status
from xcit_mm.datasets.shapes import make_shapes
from xcit_mm.engine.config import load_config, task_of
from xcit_mm.errors import UserError
from xcit_mm.inference import infer, load_predictor
from xcit_mm.weights import read_weights
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.files import write_atomically
from xcit_mm_runtime.inputs import MediaSource, find_sources

CONFIGS = (
    'xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py',
    'xcit_mm::segmentation/sem_fpn_xcit_n12_8_shapes.py',
)
READERS = 8
MAX_GROWTH = 0.02
SCORE_THR = 0.2  # low: random weights give low scores, and some detections must be drawn


@dataclass
class SoakReport:
    """The rounds of a run, and what went wrong in them.

    Args:
        images (int): Number of images processed.
        minutes (list[float]): When each round ended.
        memory (list[float]): The process's memory then, in MB.
        failures (list[str]): What went wrong.
    """

    images: int = 0
    minutes: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Largest growth of memory after the first round, as a fraction."""
        return max(self.memory) / self.memory[0] - 1

    def __str__(self) -> str:
        rounds = len(self.memory)
        return (
            f'{rounds} rounds in {self.minutes[-1]:.1f} minutes: {self.images} images, '
            f'{rounds * len(CONFIGS) * READERS} checkpoints read; memory {self.memory[-1]:.1f} MB, '
            f'growth {self.growth:.2%}; {len(self.failures)} failures'
        )


class SoakedModel:
    """A model with random weights, and the hash of what it wrote in the first round."""

    def __init__(self, config: str, folder: Path) -> None:
        cfg = load_config(config)
        self.task = task_of(cfg)
        self.results = folder / self.task
        self.checkpoint = save_random_weights(cfg, folder / f'{self.task}.pth')
        self.predictor = load_predictor(cfg, str(self.checkpoint), 'cpu')
        self.first = ''

    def problems(self, images: list[MediaSource]) -> Iterator[str]:
        """Process the images; yield what went wrong."""
        shutil.rmtree(self.results, ignore_errors=True)
        self.results.mkdir()
        try:
            skipped = infer(self.predictor, images, self.results, SCORE_THR).skipped
            readings = read_at_once(str(self.checkpoint))
        except Exception as error:  # a long run continues with the next round
            yield f'{type(error).__name__}: {error}'
            return
        if skipped:
            yield f'{len(skipped)} images were skipped'
        written = _hash_of_files(self.results)
        self.first = self.first or written
        if written != self.first:
            yield 'the results differ from those of the first round'
        if len(set(readings)) != 1:
            yield 'processes read different weights from one checkpoint'


def save_random_weights(cfg: Config, path: Path) -> Path:
    """Write a checkpoint of the config's model as built."""
    init_default_scope(task_of(cfg))
    torch.manual_seed(0)
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict()}, path)
    return path


def soak(minutes: float, images: int, size: int, out_dir: Path) -> SoakReport:
    """Run for a given time, but for at least two rounds.

    Args:
        minutes (float): Duration.
        images (int): Images per round, for the detector and for the segmentor each.
        size (int): Height and width of most of them.
        out_dir (Path): Where ``soak.json`` goes, and the results of rounds that went wrong.
    """
    report, start = SoakReport(), time.monotonic()
    out_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = make_shapes(folder / 'shapes', 1, images, size)
        paths = find_sources([str(data / 'coco' / 'val2017')])
        models = [SoakedModel(config, folder) for config in CONFIGS]
        while len(report.memory) < 2 or time.monotonic() - start < 60 * minutes:
            number = len(report.memory) + 1
            for model in models:
                for problem in model.problems(paths):
                    report.failures.append(f'round {number}, {model.task}: {problem}')
                    kept = out_dir / f'round_{number}_{model.task}'
                    shutil.copytree(model.results, kept, dirs_exist_ok=True)
            report.images += len(models) * len(paths)
            report.minutes.append((time.monotonic() - start) / 60)
            report.memory.append(memory_status('VmRSS'))
            write_atomically(out_dir / 'soak.json', json.dumps(asdict(report), indent=1) + '\n')
            print(report, flush=True)
    return report


def read_at_once(*sources: str) -> list[str]:
    """Read checkpoints in eight processes at the same time.

    Args:
        *sources (str): Paths or addresses, each read by mmengine, as a config's ``load_from`` is.

    Returns:
        list[str]: The hash of the weights, for each process and source.
    """
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['xcit_mm'])
    arguments = (context.Barrier(READERS), torch.hub.get_dir())
    with ProcessPoolExecutor(READERS, context, _join, arguments) as pool:
        found = pool.map(_read, [sources] * READERS)
        return [weights for reader in found for weights in reader]


def _join(barrier: Barrier, cache: str) -> None:
    _read.barrier = barrier  # type: ignore[attr-defined]
    torch.hub.set_dir(cache)


def _read(sources: tuple[str, ...]) -> list[str]:
    _read.barrier.wait(timeout=300)  # type: ignore[attr-defined]
    return [_hash_of_weights(source) for source in sources]


def _hash_of_weights(source: str) -> str:
    digest = hashlib.sha256()
    for name, tensor in read_weights(source)['state_dict'].items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def _hash_of_files(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob('*')):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.soak',
        description='Run inference in one process for a long time: nothing may fail, change or '
        'grow. In each round, a detector and a segmentor with random weights process the same '
        'images, and eight processes read their checkpoints at once. Exit status 1 if anything '
        'failed, if results differ from those of the first round, or if memory grew by over 2 % '
        'after it. Linux only.',
    )
    parser.add_argument('--minutes', type=float, default=30, help='default: %(default)s')
    parser.add_argument(
        '--images', type=int, default=200, help='images per round (default: %(default)s)'
    )
    parser.add_argument('--size', type=int, default=64, help='pixels (default: %(default)s)')
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('work_dirs/soak') / time.strftime('%Y%m%d_%H%M%S'),
        help='where soak.json goes (default: work_dirs/soak/TIME)',
    )
    return explain_errors(work, parser.parse_args(argv))


def work(args: argparse.Namespace) -> int:
    try:
        report = soak(args.minutes, args.images, args.size, args.out_dir)
    except ValueError as error:
        raise UserError(f'{error} (--images, --size)') from None
    print('minute  memory (MB)')
    step = -(-len(report.memory) // 20)
    for minute, memory in list(zip(report.minutes, report.memory, strict=True))[::step]:
        print(f'{minute:6.1f}  {memory:.1f}')
    for failure in report.failures:
        print(f'failed: {failure}')
    print(f'{report}\nall rounds: {args.out_dir / "soak.json"}')
    return 1 if report.failures or report.growth > MAX_GROWTH else 0


if __name__ == '__main__':
    sys.exit(main())
