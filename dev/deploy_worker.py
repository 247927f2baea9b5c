"""Measures exported models and PyTorch in a process of its own, for :mod:`dev.deploy_benchmark`.

``python -m dev.deploy_worker JOB`` with a job in JSON prints its result as one line of JSON.
PyTorch is imported only to run a checkpoint: it must not count in the memory of exported models.
"""

import collections
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import xcit_mm_runtime
from dev.memory import reset_peak, status
from xcit_mm_runtime.model import session_graph

Step = Callable[[], Any]
# Idle threads of ONNX Runtime wait actively for a while, and would slow down PyTorch.
PAUSE = 0.05


def build_step(runner: dict[str, Any], image: np.ndarray, threads: int) -> Step:
    """A function that predicts once: from pixels to final labels, or boxes with pasted masks.

    Args:
        runner (dict): ``{'onnx': FILE}``, or ``{'config': ..., 'checkpoint': ...}``.
        image (np.ndarray): uint8 (H, W, 3), BGR, of the size that the network takes.
        threads (int): How many threads.
    """
    if 'onnx' in runner:
        model = xcit_mm_runtime.load(runner['onnx'], threads)
        model.metadata.resize = None
        return lambda: model(image)
    return _torch_step(runner, image, threads)


def _torch_step(runner: dict[str, Any], image: np.ndarray, threads: int) -> Step:
    import torch

    from xcit_mm.inference import load_model
    from xcit_mm_cli.common import load_config

    torch.set_num_threads(threads)
    cfg = load_config(runner['config'], runner.get('options'))
    model = load_model(cfg, runner['checkpoint'], 'cpu')
    if cfg.default_scope == 'mmdet':
        from mmdet.structures import DetDataSample as DataSample
    else:
        from mmseg.structures import SegDataSample as DataSample
    pixels = torch.from_numpy(image.transpose(2, 0, 1).copy())
    size = {'img_shape': image.shape[:2], 'ori_shape': image.shape[:2], 'scale_factor': (1.0, 1.0)}

    def step() -> None:
        with torch.inference_mode():
            model.test_step({'inputs': [pixels], 'data_samples': [DataSample(metainfo=size)]})

    return step


def measure_speed(job: dict[str, Any], image: np.ndarray) -> dict[str, Any]:
    """Median seconds of each runner, in alternating order."""
    steps = [build_step(runner, image, job['threads']) for runner in job['runners']]
    for step in steps:
        step()  # warm-up
    times: list[list[float]] = [[] for _ in steps]
    for repetition in range(job['repetitions']):
        order = range(len(steps))
        for i in order if repetition % 2 else reversed(order):
            time.sleep(PAUSE)
            start = time.perf_counter()
            steps[i]()
            times[i].append(time.perf_counter() - start)
    return {'times': times, 'medians': [statistics.median(values) for values in times]}


def measure_memory(job: dict[str, Any], image: np.ndarray) -> dict[str, Any]:
    """Peak memory of the process while one runner predicts, libraries and weights included."""
    (runner,) = job['runners']
    step = build_step(runner, image, job['threads'])
    reset_peak()  # what only loading needed
    step()
    step()
    return {'peak_MB': status('VmHWM')}


def measure_operators(job: dict[str, Any], image: np.ndarray) -> dict[str, Any]:
    """Each operator's share of the time of an exported model, by ONNX Runtime's profiler."""
    import onnxruntime

    model = xcit_mm_runtime.load(job['runners'][0]['onnx'])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling = job['threads'], True
    model.metadata.resize = None
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f'{folder}/profile'
        session = onnxruntime.InferenceSession(str(model.path), options)
        model.graph = session_graph(session)
        for _ in range(job['repetitions'] + 1):
            model(image)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = sorted(e['ts'] for e in events if e['name'] == 'model_run')
    total: collections.Counter[str] = collections.Counter()
    for event in events:
        if (
            event['cat'] == 'Node'
            and event['name'].endswith('_kernel_time')
            and event['ts'] >= runs[1]
        ):
            total[event['args']['op_name']] += event['dur']
    return {'shares': {name: value / total.total() for name, value in total.most_common(8)}}


MEASURES = {'speed': measure_speed, 'memory': measure_memory, 'operators': measure_operators}


def main() -> None:
    job = json.loads(sys.argv[1])
    image = np.random.default_rng(0).integers(0, 256, (*job['size'], 3), np.uint8)
    if job.get('image'):
        image = xcit_mm_runtime.inputs.read_image(job['image'])
    print('RESULT ' + json.dumps(MEASURES[job['measure']](job, image)))


if __name__ == '__main__':
    main()
