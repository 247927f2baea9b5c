"""Tables of the benchmark on a CPU and small images: every cell is really measured."""

import json

import pytest
import torch

from dev.benchmark import gpu, run_time
from dev.benchmark.candidates import CLASSIFIERS, build_classifier
from dev.benchmark.jobs import run_job
from xcit_mm.stats import count_parameters


@pytest.mark.long
def test_the_table_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, 'REPETITIONS', 1)
    # mmcv's operators have no half precision on a CPU.
    modes = ('infer', 'amp train', 'detect', 'learn to detect')
    cases = [gpu.Case(mode, 'n12', 16, 2, (96, 128)) for mode in modes]
    assert gpu.run_gpu_benchmark(tmp_path, cases) == 0
    data = json.loads((tmp_path / 'benchmark.json').read_text())
    page = (tmp_path / 'benchmark.md').read_text()
    assert 'Mask R-CNN N12/16, 2 x 96x128, training step, float32' in page
    assert data['machine']['card'] in page and data['machine']['driver'] in page
    for row in data['rows']:
        for name in ('timm', 'ours', 'ours compiled'):
            time, _, memory = row[name].rpartition(', ')
            assert float(time.split()[0]) > 0 and memory.endswith(' MB')


@pytest.mark.parametrize(
    'name, millions',
    # The paper's column of parameters, in which ResNet-50 and Swin-T are rounded down.
    [('resnet50', 25), ('deit_s', 22), ('cait_s12', 26), ('swin_t', 28), ('ours', 26)],
)
def test_classifiers_have_the_papers_parameters_and_take_any_size(name, millions):
    model = build_classifier(name).eval()
    assert abs(count_parameters(model) / 1e6 - millions) < 1
    for height, width in ((64, 96), (224, 224)):
        with torch.no_grad():
            assert model(torch.zeros(1, 3, height, width)).shape == (1, 1000)


@pytest.mark.long
def test_the_table_of_run_time(tmp_path):
    run_time.measure_run_time(tmp_path, resolutions=(64, 96), batches=(1, 2))
    data = json.loads((tmp_path / 'run_time.json').read_text())
    assert len(data['rows']) == 2 * 2 * len(CLASSIFIERS)
    page = (tmp_path / 'run_time.md').read_text()
    assert page == run_time.page_text(data)
    assert page.count(' im/s, ') == len(data['rows']) + 21  # and the paper's


@pytest.mark.long
def test_a_measurement_without_enough_memory_is_a_result():
    """1.5 GB hold the weights, but not the attention matrices of 4 x 8 x 4,096 x 4,096."""
    job = ([{'name': 'cait_s12'}], (1024, 1024), 'classify')
    assert run_job('one', *job, batch=4, memory_limit=1.5) == {'out_of_memory': True}
    row = dict(model='cait_s12', batch=4, resolution=1024, seconds=None, peak_MB=None)
    assert run_time._cell(row) == 'out of memory'
