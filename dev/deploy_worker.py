"""Measures exported models and PyTorch in a process of its own, for :mod:`dev.deploy_benchmark`.

PyTorch is imported only to run a checkpoint: it must not count in the memory of exported models.
"""

import collections
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import xcit_mm_runtime
from dev.measure import Job, alternate, answer, memory_status, reset_peak
from xcit_mm_runtime.model import session_graph

Step = Callable[[], Any]
# Idle threads of ONNX Runtime wait actively for a while, and would slow down PyTorch.
PAUSE = 0.05


def image_of(job: Job) -> np.ndarray:
    """Return the image that is predicted: a file, or random pixels of a size."""
    if job['image']:
        return xcit_mm_runtime.read_image(job['image'])
    return np.random.default_rng(0).integers(0, 256, (*job['size'], 3), np.uint8)


def build_step(runner: dict[str, Any], job: Job) -> Step:
    """Return a function that predicts once: from pixels to labels, or boxes with pasted masks.

    Args:
        runner (dict): ``{'onnx': FILE}``, or ``{'config': ..., 'checkpoint': ...}``.
        job (dict): Its image, of the size that the network takes, and its number of threads.
    """
    image = image_of(job)
    if 'onnx' in runner:
        model = xcit_mm_runtime.load(runner['onnx'], job['threads'])
        model.metadata.resize = None
        return lambda: model(image)
    return _torch_step(runner, image, job['threads'])


def _torch_step(runner: dict[str, Any], image: np.ndarray, threads: int) -> Step:
    import torch

    from xcit_mm.engine.config import load_config
    from xcit_mm.inference import load_model

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


def measure_speed(job: Job) -> dict[str, Any]:
    """Return the median seconds of each runner, in alternating order."""
    steps = [build_step(runner, job) for runner in job['runners']]
    times = alternate(steps, job['repetitions'], PAUSE)
    return {'medians': [statistics.median(values) for values in times]}


def measure_memory(job: Job) -> dict[str, Any]:
    """Return the peak memory of a process in which one runner predicts, libraries included."""
    (runner,) = job['runners']
    step = build_step(runner, job)
    reset_peak()  # what only loading needed
    step()
    step()
    return {'peak_MB': memory_status('VmHWM')}


def measure_operators(job: Job) -> dict[str, Any]:
    """Return each operator's share of the time of an exported model, by ONNX Runtime's profiler."""
    import onnxruntime

    image, model = image_of(job), xcit_mm_runtime.load(job['runners'][0]['onnx'])
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
    _, first, *_ = sorted(e['ts'] for e in events if e['name'] == 'model_run')  # after a warm-up
    total: collections.Counter[str] = collections.Counter()
    for event in events:
        if event['name'].endswith('_kernel_time') and event['ts'] >= first:
            total[event['args']['op_name']] += event['dur']
    return {'shares': {name: value / total.total() for name, value in total.most_common(8)}}


if __name__ == '__main__':
    answer({'speed': measure_speed, 'memory': measure_memory, 'operators': measure_operators})
