"""The infer command in several processes, which are killed, and the merge command."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from xcit_mm.inference.shards import Journal
from xcit_mm_runtime import inputs, predict

from ..engine.runs import wait_for
from ..runtime.graphs import write_model
from ..tiny import ROOT, call


def draw_images(folder, count):
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        cv2.imwrite(str(folder / f'{i:05}.png'), rng.integers(0, 255, (32, 32, 3), np.uint8))
    return folder


@pytest.fixture
def images(tmp_path):
    """Ten images, of which number 4 is broken."""
    folder = draw_images(tmp_path / 'images', 10)
    (folder / '00004.png').write_bytes(b'not an image')
    return folder


@pytest.fixture
def words(images, tmp_path):
    """A function that returns the arguments of a command."""

    def arguments(task, out, *more):
        model = tmp_path / f'{task}.onnx'
        if not model.exists():
            write_model(model, task, (32, 32), resize=None)
        chosen = [images, '--model', model, '--no-vis', '--out-dir', tmp_path / out, *more]
        return [str(word) for word in chosen]

    return arguments


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob('*.*')}


def results_of(folder):
    return {
        path: content for path, content in files_of(folder).items() if 'shards' not in path.parts
    }


def run_killed(words, rank, world, lines):
    """Run a process that is killed in the middle of writing a line, after so many."""
    written = 0

    def write(self, content, write=Journal._write):
        nonlocal written
        if written == lines:
            self.file.write(json.dumps(content).encode()[:12])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        written += 1
        write(self, content)

    Journal._write = write
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    os._exit(call('infer', *words))


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_killed_processes_continue_and_their_merged_file_is_that_of_one_process(
    task, words, images, tmp_path, monkeypatch, capfd
):
    out = tmp_path / 'out'
    assert call('infer', *words(task, 'one')) == 1
    context = multiprocessing.get_context('fork')
    processes = [
        context.Process(target=run_killed, args=(words(task, 'out'), rank, 2, lines))
        for rank, lines in ((0, 2), (1, 99))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL, 0]
    printed = capfd.readouterr().out
    assert 'shard 2/2: 5 of 5 inputs, 0 skipped' in printed and f'merge {out}' in printed
    assert call('merge', out) == 2
    assert '3 of 10 inputs are missing' in capfd.readouterr().err
    assert call('merge', out, '--allow-missing') == 1
    assert '7 of 10 images' in capfd.readouterr().out

    # The same command does what is missing: numbers 4, 6 and 8.
    read = []

    def read_image(path, *settings):
        read.append(Path(path).name)
        return inputs.read_image(path, *settings)

    monkeypatch.setattr(predict, 'read_image', read_image)
    for shard in ('2/2', '1/2'):
        assert call('infer', *words(task, 'out', '--shard', shard)) == 0
    assert sorted(read) == ['00004.png', '00006.png', '00008.png']
    capfd.readouterr()
    assert call('merge', out) == 1
    printed = capfd.readouterr().out
    assert f'skipped, cannot be read: {images}/00004.png' in printed and '9 of 10 ima' in printed
    assert results_of(out) == results_of(tmp_path / 'one')

    # The broken image is not tried again, unless the user wants that.
    assert call('infer', *words(task, 'out', '--shard', '1/2')) == 0 and len(read) == 3
    (images / '00004.png').write_bytes((images / '00003.png').read_bytes())
    for shard in ('1/2', '2/2'):
        assert call('infer', *words(task, 'out', '--shard', shard, '--retry-skipped')) == 0
    assert read[3:] == ['00004.png']
    assert call('infer', *words(task, 'one', '--force')) == 0
    assert call('merge', out) == 0 and files_of(out) == files_of(tmp_path / 'one')
    assert len(files_of(out)) == (1 if task == 'detection' else 10)
    capfd.readouterr()
    assert call('merge', out) == 2 and 'no shards to merge' in capfd.readouterr().err
    assert call('infer', *words(task, 'out', '--shard', '1/2')) == 2
    assert 'already exists' in capfd.readouterr().err


def test_ids_of_an_annotation_file_survive_the_merge(words, images, tmp_path):
    entries = [{'id': 700 - 7 * i, 'file_name': f'{i:05}.png'} for i in range(9)]
    kinds = [{'id': 10 * i, 'name': name} for i, name in enumerate(['star', 'disc', 'bar'])]
    truth = tmp_path / 'truth.json'
    truth.write_text(json.dumps({'images': entries, 'categories': kinds}))
    assert call('infer', *words('detection', 'one', '--ann-file', truth)) == 1
    for shard in ('1/2', '2/2'):
        assert call('infer', *words('detection', 'out', '--ann-file', truth, '--shard', shard)) == 0
    assert call('merge', tmp_path / 'out') == 1  # one is broken, one is not in the file
    assert results_of(tmp_path / 'out') == results_of(tmp_path / 'one')
    assert len(results_of(tmp_path / 'out')) == 3


def test_what_several_processes_cannot_do_is_refused(words, tmp_path, monkeypatch, capfd):
    def error(*more, inputs=()):
        assert call('infer', *map(str, inputs), *words('detection', 'out', *more)) == 2
        return capfd.readouterr().err

    assert 'one with --force would delete' in error('--shard', '1/2', '--force')
    assert 'Camera 99 can only be recorded by one' in error('--shard', '1/2', inputs=[99])
    large = ['scene.tif', '--config', ROOT / 'configs/segmentation/sem_fpn_xcit_n12_16_80k.py']
    large += ['--checkpoint', 'c.pth', '--whole', '--shard', '1/2']
    assert call('infer', *large) == 2
    assert '--whole and --window run in one process' in capfd.readouterr().err
    for wrong in ('0/2', '3/2', '2', '/2', 'a/b', '1/0'):
        with pytest.raises(SystemExit):
            call('infer', *words('detection', 'out', '--shard', wrong))
        assert f"'{wrong}' must be I/N, from 1/N to N/N" in capfd.readouterr().err
    assert call('infer', *words('detection', 'out', '--shard', '1/2')) == 0
    assert 'other images, weights or settings' in error('--shard', '2/2', '--score-thr', '0.9')
    assert 'another number of shards' in error('--shard', '2/3')
    monkeypatch.setenv('RANK', '2')
    monkeypatch.setenv('WORLD_SIZE', '2')
    assert 'RANK=2 and WORLD_SIZE=2 must be' in error()
    (tmp_path / 'out' / 'shards' / 'job.json').write_bytes(b'no JSON\n')
    assert call('merge', tmp_path / 'out') == 2
    assert 'job.json is damaged: delete' in capfd.readouterr().err


def workers_of(process):
    children = Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()
    return [int(number) for number in children]


@pytest.mark.long
def test_3000_images_through_two_processes_with_three_kills(tmp_path):
    images, out = draw_images(tmp_path / 'images', 3000), tmp_path / 'out'
    model = write_model(tmp_path / 'model.onnx', 'detection', (32, 32), resize=None)
    launcher = [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node=2', '--standalone']
    command = ['tools/infer.py', images, '--model', model, '--no-vis', '--out-dir']
    environ = {**os.environ, 'OMP_NUM_THREADS': '1'}
    subprocess.run([sys.executable, *command, tmp_path / 'one'], cwd=ROOT, env=environ, check=True)

    def lines():
        return sum(path.read_bytes().count(b'\n') for path in out.glob('shards/*.jsonl'))

    for kill, limit in enumerate((600, 1200, 1800)):
        process = subprocess.Popen([*launcher, *command, out], cwd=ROOT, env=environ)
        assert wait_for(lambda limit=limit: lines() >= limit, process)
        os.kill(workers_of(process)[kill % 2], signal.SIGKILL)
        assert process.wait() != 0  # torchrun stops the other one
        assert lines() < 3000
    subprocess.run([*launcher, *command, out], cwd=ROOT, env=environ, check=True)
    assert lines() == 3000  # each once
    assert call('merge', out) == 0
    assert files_of(out) == files_of(tmp_path / 'one')
