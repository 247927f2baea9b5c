"""``python -m dev.serving``: loads, faults and costs; the tables of docs/studies/serving.md.

Everything runs on this machine, over loopback. ``wrk`` makes the load (Debian has a package).
"""

import argparse
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import xcit_mm_runtime
from dev.deploy_benchmark import LARGE, LARGE_OPTIONS, save_random_weights
from dev.measure import alternate, memory_status, seconds
from dev.pages import write_between_marks, write_numbers
from xcit_mm.engine.config import load_config
from xcit_mm.errors import UserError
from xcit_mm.tables import format_table
from xcit_mm_cli import main as command
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.inputs import decode
from xcit_mm_runtime.server import describe

Row = dict[str, Any]
SMALL = 'xcit_mm::segmentation/sem_fpn_xcit_n12_8_shapes.py'
MODELS: dict[str, tuple[str, list[str]]] = {'small': (SMALL, []), 'large': (LARGE, LARGE_OPTIONS)}
# The last commit with the server that xcit-mm serve replaced.
BEFORE = '6215216:examples/serve.py'
WRK = """
wrk.method, wrk.headers['Content-Type'] = 'POST', 'image/jpeg'
wrk.body = io.open(os.getenv('IMAGE'), 'rb'):read('*a')
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() good, busy, other = 0, 0, 0 end
function response(status)
  if status == 200 then good = good + 1 elseif status == 503 then busy = busy + 1
  else other = other + 1 end
end
function done(summary, latency)
  local errors, thread = summary.errors, threads[1]
  local failed = errors.connect + errors.read + errors.write + errors.timeout + thread:get('other')
  print(string.format('RESULT {"good": %d, "seconds": %f, "p50": %f, "p99": %f, "busy": %d, '
    .. '"failed": %d}', thread:get('good'), summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, thread:get('busy'), failed))
end
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.serving',
        description='Measure the server under load (12 minutes), inference on a Ray cluster with '
        'faults (20 minutes), and what a million images cost (3 minutes). Exports two models with '
        'random weights first. Writes a table of docs/studies/serving.md each, unless --quick.',
    )
    parser.add_argument('what', choices=('load', 'faults', 'costs'), nargs='+')
    parser.add_argument('--seconds', type=int, default=120,
                        help='load: for each number of clients (default: 120)')  # fmt: skip
    parser.add_argument('--clients', type=int, nargs='+', default=[1, 8, 64],
                        help='load: parallel clients (default: 1 8 64)')  # fmt: skip
    parser.add_argument('--images', type=int, default=20_000,
                        help='faults: how many (default: 20000)')  # fmt: skip
    parser.add_argument('--cpu-price', type=float, default=0.04,
                        help='costs: dollars per hour of a processor (default: 0.04)')  # fmt: skip
    parser.add_argument('--gpu-price', type=float, default=1.0,
                        help='costs: dollars per hour of a GPU (default: 1)')  # fmt: skip
    parser.add_argument('--gpu-tflops', type=float, default=30.0,
                        help='costs: what the GPU reaches in practice (default: 30)')  # fmt: skip
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/serving'),
                        help='folder for models and images (default: %(default)s)')  # fmt: skip
    parser.add_argument('--page', type=Path, default=Path('docs/studies/serving.md'),
                        help='the page; JSON goes next to it (default: %(default)s)')  # fmt: skip
    parser.add_argument('--quick', action='store_true', help='do not write the page')
    return parser.parse_args(argv)


def model_file(name: str, folder: Path) -> Path:
    """Export a model with random weights, unless that is done."""
    path, (config, options) = folder / f'{name}.onnx', MODELS[name]
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        weights = save_random_weights(load_config(config, options), folder / f'{name}.pth')
        words = ['export', config, str(weights), '--out', str(path)]
        if command([*words, '--cfg-options', *options] if options else words):
            raise UserError(f'{config} could not be exported.')
    return path


def photo(side: int, seed: int = 0) -> bytes:
    """Return a JPEG of a square scene with details as photos have them."""
    rng, image = np.random.default_rng(seed), np.zeros((side, side, 3), np.float32)
    for size in (4, 16, 64, 256):
        noise = rng.normal(0, 90 / np.log2(size), (size, size, 3)).astype(np.float32)
        image += cv2.resize(noise, (side, side), interpolation=cv2.INTER_CUBIC)
    pixels = np.clip(image + 128, 0, 255).astype(np.uint8)
    return cv2.imencode('.jpg', pixels)[1].tobytes()


# Load


@contextlib.contextmanager
def running(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Run a server; yield its process and its port."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r':(\d+)', process.stdout.readline().rpartition('//')[2])
            if found is None:
                raise UserError(f'{words} does not serve.')
            yield process.pid, int(found[1])
        finally:
            process.terminate()


def measure_load(args: argparse.Namespace) -> list[Row]:
    """Return a row for each server and number of clients."""
    if shutil.which('wrk') is None:
        raise UserError('wrk makes the load: apt-get install wrk')
    model, folder = model_file('small', args.out_dir), args.out_dir
    before, script, image = (folder / name for name in ('before.py', 'wrk.lua', 'photo.jpg'))
    before.write_bytes(subprocess.run(['git', 'show', BEFORE], capture_output=True).stdout)
    script.write_text(WRK)
    image.write_bytes(photo(96))
    servers = {
        'before': [str(before), str(model), '--port', '0'],
        'xcit-mm serve': ['-m', 'xcit_mm_cli', 'serve', str(model), '--port', '0'],
    }
    rows = []
    for clients in args.clients:
        for name, words in servers.items():
            with running(words) as (pid, port):
                rows.append({'server': name, **load_server(pid, port, clients, args, folder)})
                print(format_table(rows[-1:]), flush=True)
    return rows


def load_server(pid: int, port: int, clients: int, args: argparse.Namespace, folder: Path) -> Row:
    """Return what a number of clients get from a server."""

    def wrk(duration: int) -> dict[str, float]:
        words = ['wrk', '-t1', f'-c{clients}', f'-d{duration}', '--timeout', '60', '-s']
        address = f'http://127.0.0.1:{port}/predict'
        env = {**os.environ, 'IMAGE': str(folder / 'photo.jpg')}
        run = subprocess.run(
            [*words, str(folder / 'wrk.lua'), address], capture_output=True, text=True, env=env
        )
        found = re.search(r'^RESULT (.*)$', run.stdout, re.MULTILINE)
        if found is None:
            raise UserError(f'wrk failed: {run.stdout} {run.stderr}')
        return json.loads(found[1])

    wrk(max(2, args.seconds // 10))  # warm-up
    time.sleep(2)  # until the last images of it are done
    memory = memory_status('VmRSS', pid)
    got = wrk(args.seconds)
    return {
        'clients': clients,
        'images/s': round(got['good'] / got['seconds'], 1),
        'p50 ms': round(got['p50'], 1),
        'p99 ms': round(got['p99'], 1),
        '503': got['busy'],
        'failed': got['failed'],
        'MB at start': round(memory),
        'MB at end': round(memory_status('VmRSS', pid)),
    }


# Faults


def ray_workers() -> list[int]:
    """Return the processes with a model: children of Ray's, which are children of this one."""

    def parent(process: int | str) -> int:
        return int(Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[1])

    found = []
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):  # it has ended
            has_model = b'MapWorker' in (process / 'cmdline').read_bytes()
            if has_model and parent(parent(process.name)) == os.getpid():
                found.append(int(process.name))
    return found


def wait_for_results(out: Path, count: int) -> None:
    """Wait until there are so many label PNGs or pictures."""
    while len(list(out.glob('vis/*.png'))) + len(list(out.glob('labels/*.png'))) < count:
        time.sleep(0.1)


def kill_worker(out: Path, count: int) -> int:
    """Kill a worker when there are so many results; return which."""
    wait_for_results(out, count)
    while not (found := ray_workers()):
        time.sleep(0.02)
    os.kill(found[0], signal.SIGKILL)
    return found[0]


def same_labels(one: Path, other: Path) -> bool:
    """Return whether two folders have the same label PNGs."""
    names = sorted(path.name for path in (one / 'labels').iterdir())
    if names != sorted(path.name for path in (other / 'labels').iterdir()):
        return False
    folders = (one / 'labels', other / 'labels')
    return all(len({(folder / n).read_bytes() for folder in folders}) == 1 for n in names)


def measure_faults(args: argparse.Namespace) -> list[Row]:
    """Return rows for one and two processes, for two workers, and for three nodes with faults."""
    import ray
    from ray.cluster_utils import Cluster

    model, count = model_file('small', args.out_dir), args.images
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images = folder / 'images'
        images.mkdir()
        for i in range(count):
            (images / f'{i:06}.jpg').write_bytes(photo(96, seed=i))
        words = ['infer', str(images), '--model', str(model), '--no-vis', '--out-dir']
        env = {**os.environ, 'OMP_NUM_THREADS': '1'}

        def run(name: str, work: Callable[[], Any], out: Path, workers: int) -> None:
            spent = seconds(work)
            if out.name != 'one' and command(['merge', str(out)]):
                raise UserError(f'{name}: not every image was used.')
            per_worker = round(spent * workers / count * 1000, 1)
            same = out.name == 'one' or same_labels(folder / 'one', out)
            row = {'run': name, 's': round(spent), 'ms per image and worker': per_worker}
            rows.append({**row, 'every image once, same result': 'yes' if same else 'NO'})
            print(format_table(rows[-1:]), flush=True)

        def processes(out: Path, number: int) -> None:
            single = [sys.executable, '-m', 'xcit_mm_cli', *words, str(out)]
            shares = [['--shard', f'{i + 1}/{number}'] if number > 1 else [] for i in range(number)]
            started = [subprocess.Popen([*single, *share], env=env) for share in shares]
            if sum(process.wait() for process in started):
                raise UserError('A process failed.')

        for name, number in (('one process', 1), ('two processes, a half each', 2)):
            out = folder / ('one' if number == 1 else 'halves')
            run(name, functools.partial(processes, out, number), out, number)
        for name, first, others in (
            ('Ray, two workers', 2, 0),
            ('Ray, three nodes, one removed, two workers killed', 1, 2),
        ):
            out, workers = folder / f'out_{others}', first + others
            head = {'num_cpus': first, 'include_dashboard': False}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            added = [cluster.add_node(num_cpus=1) for _ in range(others)]
            ray.init(address=cluster.address, log_to_driver=False)

            def harm(out: Path = out, added: list[Any] = added, cluster: Any = cluster) -> None:
                kill_worker(out, count // 10)
                wait_for_results(out, count // 4)
                cluster.remove_node(added[0], allow_graceful=False)
                kill_worker(out, count // 2)

            thread = threading.Thread(target=harm, daemon=True)
            if added:
                thread.start()
            work = functools.partial(command, [*words, str(out), '--ray'])
            run(name, work, out, workers)
            if added and thread.is_alive():
                raise UserError('The job ended before its faults: use more --images.')
            ray.shutdown()
            cluster.shutdown()
    return rows


# Costs


def measure_costs(args: argparse.Namespace) -> tuple[list[Row], str]:
    """Return what a photo of one megapixel takes on one processor, and the costs of a million."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from xcit_mm.inference.predictors import build_model

    content = photo(1024)
    model = xcit_mm_runtime.load(model_file('large', args.out_dir), threads=1)
    image = decode(np.frombuffer(content, np.uint8))
    assert image is not None
    resized, found = model._resize(image), model(image)
    steps: dict[str, Callable[[], Any]] = {
        'decode the JPEG': lambda: decode(np.frombuffer(content, np.uint8)),
        'resize': lambda: model._resize(image),
        'run the model': lambda: model.run_batch(resized[None]),
        'the rest, to a label for each pixel': lambda: model(image),
        'encode as JSON': lambda: json.dumps(describe(found)),
    }
    times = dict(zip(steps, map(np.median, alternate(list(steps.values()), 5)), strict=True))
    times['the rest, to a label for each pixel'] -= times['resize'] + times['run the model']
    total = sum(times.values())
    batches = [1, 2, 4, 8]
    runs = [lambda n=n: model.run_batch(np.repeat(resized[None], n, 0)) for n in batches]
    spent = [float(np.median(t)) / n for t, n in zip(alternate(runs, 3), batches, strict=True)]
    network = build_model(load_config(*MODELS['large']))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, *resized.shape[:2]))
    flops = counter.get_total_flops() / 1e9
    per_gpu = args.gpu_tflops * 1e3 / flops
    feeding = (total - times['run the model']) * per_gpu
    rows = [
        {'step': name, 'ms': round(1000 * float(value), 1), 'share': f'{value / total:.0%}'}
        for name, value in times.items()
    ]
    hours, gpu_hours = 1e6 * total / 3600, 1e6 / per_gpu / 3600
    gpu_cost = gpu_hours * (args.gpu_price + feeding * args.cpu_price)
    text = '\n'.join(
        [
            f'- **A run of the model with 1, 2, 4 and 8 images** takes '
            f'{", ".join(f"{1000 * t:.0f}" for t in spent)} ms per image on one processor.',
            f'- **CPUs**: {1000 * total:.0f} ms per image are {hours:.0f} hours of one processor '
            f'for a million, ${hours * args.cpu_price:.0f} at ${args.cpu_price:g} per hour. The '
            f'model takes {times["run the model"] / total:.0%} of it.',
            f'- **Network**: {len(content) / 1e6:.2f} MB per image; a processor takes '
            f'{len(content) / 1e6 / total:.1f} MB/s.',
            f'- **GPUs** (not measured): {flops:.0f} GFLOP per image, at {args.gpu_tflops:g} '
            f'TFLOP/s, are {per_gpu:.0f} images per second and GPU, or {gpu_hours:.1f} hours for a '
            f'million. To keep one GPU busy, {feeding:.0f} processors must decode and encode, and '
            f'{per_gpu * len(content) / 1e6:.0f} MB/s must arrive. At ${args.gpu_price:g} per hour '
            f'of a GPU, all of it costs ${gpu_cost:.0f}.',
        ]
    )
    return rows, text


def run_all(args: argparse.Namespace) -> int:
    """Measure what was asked for, and write it down."""
    numbers = args.page.with_suffix('.json')
    data = json.loads(numbers.read_text()) if numbers.exists() else {}
    parts = {}
    for what in args.what:
        if what == 'costs':
            rows, text = measure_costs(args)
            parts[what] = format_table(rows, 'markdown') + '\n\n' + text
        else:
            rows = measure_load(args) if what == 'load' else measure_faults(args)
            parts[what] = format_table(rows, 'markdown')
        data[what] = rows
        print(parts[what], flush=True)
    if not args.quick:
        write_numbers(numbers, data)
        write_between_marks(args.page, parts)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    return explain_errors(run_all, parse_args(argv))


if __name__ == '__main__':
    sys.exit(main())
