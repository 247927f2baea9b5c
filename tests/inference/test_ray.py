"""Inference on a Ray cluster of this machine: workers and machines that die, and what is merged."""

import json
import os
import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster

from dev.serving import kill_worker, wait_for_results
from xcit_mm.errors import UserError
from xcit_mm.inference import on_ray
from xcit_mm.inference.on_ray import find_ray_images
from xcit_mm_runtime.predict import Skipped
from xcit_mm_runtime.ray_worker import ImageWorker

from ..runtime.graphs import write_model
from ..tiny import call


@pytest.fixture(scope='module', autouse=True)
def no_usage_stats():
    """Keep Ray from reporting to its makers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('RAY_USAGE_STATS_ENABLED', '0')
        yield


@pytest.fixture(scope='module')
def cluster():
    """Room for two workers."""
    ray.init('local', num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def draw_images(folder, count, size=(32, 32)):
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        cv2.imwrite(str(folder / f'{i:05}.png'), rng.integers(0, 255, (*size, 3), np.uint8))
    (folder / '00004.png').write_bytes(b'not an image')
    return folder


def results_of(folder):
    files = {path.relative_to(folder): path for path in folder.rglob('*.*')}
    return {name: path.read_bytes() for name, path in files.items() if 'shards' not in name.parts}


def row_files(out):
    return sorted([*out.glob('shards/*.parquet'), *out.glob('shards/*.jsonl')])


@pytest.mark.long
def test_a_killed_worker_and_lost_rows_change_nothing(cluster, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(on_ray, 'TASK_IMAGES', 4)
    images, out = draw_images(tmp_path / 'images', 120), tmp_path / 'out'
    model = write_model(tmp_path / 'model.onnx', 'detection', (32, 32), resize=None)
    entries = [{'id': 900 - 7 * i, 'file_name': f'{i:05}.png'} for i in range(119)]
    kinds = [{'id': 10 * i, 'name': name} for i, name in enumerate(['star', 'disc', 'bar'])]
    truth = tmp_path / 'truth.json'
    truth.write_text(json.dumps({'images': entries, 'categories': kinds}))
    words = [images, '--model', model, '--ann-file', truth, '--out-dir']
    assert call('infer', *words, tmp_path / 'one') == 1
    killed = []
    killer = threading.Thread(target=lambda: killed.append(kill_worker(out, 20)), daemon=True)
    killer.start()
    assert call('infer', *words, out, '--ray') == 0
    killer.join(5)
    assert killed and '118 of 120 images, 2 skipped' in capfd.readouterr().out
    rows = [row for file in row_files(out) for row in pq.read_table(file).to_pylist()]
    assert sorted(row['number'] for row in rows) == list(range(120))  # each once
    reasons = {row['file']: row['skipped'] for row in rows if row['skipped']}
    assert reasons == {
        f'{images}/00004.png': 'cannot be read', f'{images}/00119.png': 'not in the annotation file'
    }  # fmt: skip
    assert call('merge', out) == 1 and results_of(out) == results_of(tmp_path / 'one')

    # If the command itself is killed, files are missing or half-written.
    lost, cut, *_ = row_files(out)
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-20])
    before = set(row_files(out))
    assert call('merge', out) == 2 and '8 of 120 inputs are missing' in capfd.readouterr().err
    assert call('infer', *words, out, '--ray', '--score-thr', '0.9') == 2
    assert 'other images, weights or settings' in capfd.readouterr().err
    assert call('infer', *words, out, '--shard', '1/2') == 2
    assert call('infer', *words, out, '--ray') == 0
    new = [row['number'] for file in set(row_files(out)) - before
           for row in pq.read_table(file).to_pylist()]  # fmt: skip
    assert len(new) == len(set(new)) == 8
    assert call('merge', out) == 1 and results_of(out) == results_of(tmp_path / 'one')


def test_batches_lines_and_pictures_of_a_segmentor(cluster, tmp_path, capfd):
    images = draw_images(tmp_path / 'images', 9)
    for i in range(2):  # of another size, and too small
        cv2.imwrite(str(images / f'{i}.png'), np.zeros(((40, 50, 3), (3, 3, 3))[i], np.uint8))
    model = write_model(tmp_path / 'model.onnx', 'segmentation', (32, 32), resize=None)
    words = [images, '--model', model, '--out-dir']
    assert call('infer', *words, tmp_path / 'one') == 1
    capfd.readouterr()
    more = ('--ray', '--ray-workers', 1, '--batch-size', 3, '--rows', 'jsonl')
    assert call('infer', *words, tmp_path / 'out', *more) == 0
    assert '9 of 11 images, 2 skipped' in capfd.readouterr().out
    lines = b''.join(path.read_bytes() for path in row_files(tmp_path / 'out')).splitlines()
    assert sorted(json.loads(line)['number'] for line in lines) == list(range(11))
    assert call('merge', tmp_path / 'out') == 1
    assert results_of(tmp_path / 'out') == results_of(tmp_path / 'one')


@pytest.mark.long
def test_images_in_parquet_files_and_at_addresses(cluster, tmp_path):
    folder = draw_images(tmp_path / 'images', 6)
    model = write_model(tmp_path / 'model.onnx', 'detection', (32, 32), resize=None)
    files = sorted(map(str, folder.iterdir()))
    content = [Path(file).read_bytes() for file in files]
    # As Hugging Face writes them, in several groups of rows; and paths alone.
    images = [{'bytes': c, 'path': f} for c, f in zip(content, files, strict=True)]
    pq.write_table(pa.table({'image': images[2:]}), tmp_path / 'b.parquet', row_group_size=3)
    pq.write_table(pa.table({'path': files[:1]}), tmp_path / 'a.parquet')
    inputs = (f'file://{files[1]}', tmp_path / 'b.parquet', tmp_path / 'a.parquet')
    words = ['--model', model, '--no-vis', '--ray', '--out-dir', tmp_path / 'out']
    assert call('infer', *inputs, *words) == 0
    assert call('merge', tmp_path / 'out') == 1
    one = [files[1], files[0], *files[2:]]
    assert call('infer', *one, '--model', model, '--no-vis', '--out-dir', tmp_path / 'one') == 1
    expected, found = (
        json.loads((tmp_path / name / 'predictions.json').read_text().replace('file://', ''))
        for name in ('one', 'out')
    )
    assert found == expected and len(found['images']) == 5


def test_what_ray_reads_is_found_or_refused(tmp_path):
    folder = draw_images(tmp_path / 'images', 3)
    files = sorted(map(str, folder.iterdir()))
    found = find_ray_images([f'file://{folder}'])
    assert found.sources == [f'file://{file}' for file in files] and not found.groups
    pq.write_table(pa.table({'bytes': [b'a', b'b', b'c']}), tmp_path / 'a.parquet', 2)
    found = find_ray_images([str(tmp_path / '*.parquet'), str(folder)])
    table = str(tmp_path / 'a.parquet')
    assert found.sources == [*files, f'{table}/0_0', f'{table}/0_1', f'{table}/1_0']
    assert found.groups == [(table, 0, 2), (table, 1, 1)]
    pq.write_table(pa.table({'pixels': [1]}), tmp_path / 'c.parquet')
    (tmp_path / 'empty').mkdir()
    for item, message in (
        (tmp_path / 'c.parquet', 'must have a column "bytes"'),
        (f'file://{tmp_path}/empty', 'has no images and no Parquet files'),
        ('clip.mp4', 'names no image'),
        (99, '99 is a video or a camera'),
    ):
        with pytest.raises(UserError, match=message):
            find_ray_images([str(item)])


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--config', 'c.py', '--checkpoint', 'c.pth', '--ray'], 'runs an exported model'),
        (['--model', 'm.onnx', '--ray', '--shard', '1/2'], 'no --shard'),
        (['--model', 'm.onnx', '--batch-size', '2'], '--batch-size is for --ray'),
        (['--model', 'm.onnx', '--ray', '--device', 'cuda:1'], 'must be cpu or cuda'),
    ],
)
def test_options_that_exclude_each_other(words, message, capfd):
    with pytest.raises(SystemExit):
        call('infer', 'a.jpg', *words)
    assert message in capfd.readouterr().err


class Poisoned(ImageWorker):
    """A worker that one of the images kills, as one does that takes all memory."""

    def _read(self, row):
        image = super()._read(row)
        if row['number'] == 7 and not isinstance(image, Skipped):
            os._exit(1)
        return image


@pytest.mark.long
def test_an_image_that_kills_its_process_is_skipped(cluster, tmp_path, monkeypatch, capfd):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(on_ray, 'TASK_IMAGES', 5)
    monkeypatch.setattr(on_ray, 'ImageWorker', Poisoned)
    images, out = draw_images(tmp_path / 'images', 20), tmp_path / 'out'
    model = write_model(tmp_path / 'model.onnx', 'segmentation', (32, 32), resize=None)
    words = [images, '--model', model, '--out-dir', out, '--ray', '--batch-size', 4]
    assert call('infer', *words) == 0 and call('merge', out) == 1
    printed = capfd.readouterr().out
    assert '18 of 20 images' in printed
    assert f'skipped, its process was killed each time: {images}/00007.png' in printed


@pytest.mark.long
def test_3000_images_on_three_nodes_of_which_one_is_lost(tmp_path, monkeypatch):
    ray.shutdown()
    monkeypatch.setattr(on_ray, 'TASK_IMAGES', 50)
    images, out = draw_images(tmp_path / 'images', 3000), tmp_path / 'out'
    model = write_model(tmp_path / 'model.onnx', 'detection', (32, 32), resize=None)
    words = [images, '--model', model, '--out-dir']
    assert call('infer', *words, tmp_path / 'one') == 1
    head = {'num_cpus': 1, 'include_dashboard': False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    second, _ = (nodes.add_node(num_cpus=1) for _ in range(2))
    ray.init(address=nodes.address, log_to_driver=False)
    harmed = []

    def harm():
        harmed.append(kill_worker(out, 300))
        wait_for_results(out, 800)
        nodes.remove_node(second, allow_graceful=False)
        harmed.append(kill_worker(out, 1200))

    thread = threading.Thread(target=harm, daemon=True)
    thread.start()
    try:
        assert call('infer', *words, out, '--ray') == 0
        thread.join(10)
        assert len(harmed) == 2
        numbers = [n for file in row_files(out) for n in pq.read_table(file)['number'].to_pylist()]
        assert sorted(numbers) == list(range(3000))  # each once
        assert call('merge', out) == 1 and results_of(out) == results_of(tmp_path / 'one')
    finally:
        ray.shutdown()
        nodes.shutdown()
