"""The table of a GPU's benchmark, on a CPU and small images: every column is really measured."""

import json

import pytest

from dev.benchmark import gpu


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
