"""Every command refuses hostile checkpoints; none runs code, crashes or exhausts memory."""

import json
import runpy
import subprocess
import sys

import pytest
import torch

from xcit_mm.weights import UnsafeCheckpointError, read_checkpoint
from xcit_mm_cli import infer, test, train

from ..tiny import ROOT, write_config
from . import hostile
from .guarded_reader import network

pytestmark = pytest.mark.usefixtures('strict_reader')

EXPECTED = {'CheckpointError', 'UnsafeCheckpointError'}
MEMORY = 400 * 2**20


def read_guarded(*arguments):
    """The result of each read, and how far memory grew."""
    run = subprocess.run(
        [sys.executable, '-m', 'tests.weights.guarded_reader', *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, f'{run.stderr[-2000:]} after {lines[-1:]}'
    return lines[:-1], lines[-1]['memory']


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    return hostile.good_files(tmp_path_factory.mktemp('good'), network().state_dict())


@pytest.fixture(scope='module')
def code(tmp_path_factory):
    """Files that would create the witness, and the witness."""
    folder = tmp_path_factory.mktemp('code')
    witness = tmp_path_factory.mktemp('witness') / 'witness'
    files = hostile.code_files(folder, witness)
    return {file.name: file for file in files}, witness


@pytest.fixture(scope='module')
def readings(good, code, tmp_path_factory):
    """The result of reading each file, by folder, and how far memory grew."""
    bombs, damaged = tmp_path_factory.mktemp('bombs'), tmp_path_factory.mktemp('damaged')
    hostile.bomb_files(bombs)
    hostile.damaged_files(damaged, good)
    folders = [next(iter(code[0].values())).parent, bombs, damaged, good[0].parent]
    before = sorted(bombs.parent.rglob('*'))
    results, memory = read_guarded('read', *folders)
    assert sorted(bombs.parent.rglob('*')) == before, 'a file was written'
    found = {}
    for kind, folder in zip(('code', 'bomb', 'damaged', 'good'), folders, strict=True):
        names = sorted(file.name for file in folder.iterdir())
        found[kind], results = results[: len(names)], results[len(names) :]
        assert [result['what'] for result in found[kind]] == names
    return found, memory


def test_the_attacks_are_real(code):
    """Unpickling them does create the witness."""
    files, witness = code
    for name in ('zip.pth', 'legacy.pth'):
        torch.load(files[name], weights_only=False)['meta'].close()
        assert witness.exists()
        witness.unlink()


@pytest.mark.parametrize('kind, count', [('code', 11), ('bomb', 50), ('damaged', 30)])
def test_hostile_files_are_refused_by_name_with_little_memory(kind, count, readings):
    found, memory = readings
    assert len(found[kind]) >= count and memory < MEMORY
    for result in found[kind]:
        assert result['error'] in EXPECTED and result['what'] in result['text'], result


def test_good_files_are_read(readings):
    assert [result['error'] for result in readings[0]['good']] == [None] * 3


def test_code_is_not_run(readings, code):
    assert not code[1].exists()
    unsafe = [r['what'] for r in readings[0]['code'] if r['error'] == 'UnsafeCheckpointError']
    assert {'zip.pth', 'zip.pt', 'legacy.pth', 'second pickle.pth', 'escape.pth'} <= {*unsafe}


def test_code_is_not_run_even_if_torch_is_told_to_unpickle(code, monkeypatch):
    files, witness = code
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    with pytest.raises(UnsafeCheckpointError, match=r'io\.open'):
        read_checkpoint(files['zip.pth'])
    assert not witness.exists()


@pytest.mark.parametrize('count', [40, pytest.param(500, marks=pytest.mark.long)])
def test_a_file_with_a_flipped_bit_is_read_or_gives_an_error(good, count):
    """Files are loaded into a network in three formats, and resumed from."""
    results, memory = read_guarded('flip', count, *good)
    assert len(results) == 4 * count and memory < MEMORY
    for result in results:
        assert result['error'] in {None, *EXPECTED, 'WeightsError', 'UserError'}, result
        assert result['error'] is None or result['text'], result
    for name in ('zip.pth', 'legacy.pth', 'weights.safetensors', 'epoch_1.pth'):
        kinds = {result['error'] for result in results if result['what'] == name}
        assert None in kinds and kinds & EXPECTED, name


@pytest.fixture(scope='module')
def configs(tmp_path_factory, small_data):
    folder = tmp_path_factory.mktemp('configs')
    return {task: write_config(folder, task, small_data) for task in ('seg', 'det')}


def arguments(way, file, configs, small_data, work_dir):
    """A tool and the arguments with which it reads a checkpoint."""
    image = sorted((small_data / 'coco' / 'val2017').glob('*.jpg'))[0]
    seg = configs['seg']
    common = ['--work-dir', work_dir]
    if way == 'resume the latest':
        work_dir.mkdir()
        (work_dir / 'last_checkpoint').write_text(str(file))
    pretrained = work_dir.with_suffix('.py')
    backbone = f'init_cfg=dict(_delete_=True, type="Pretrained", checkpoint="{file}")'
    pretrained.write_text(f'_base_ = "{seg}"\nmodel = dict(backbone=dict({backbone}))\n')
    return {
        'test': (test, [seg, file, *common]),
        'load_from': (train, [seg, *common, '--cfg-options', f'load_from={file}']),
        'resume': (train, [seg, *common, '--resume', file]),
        'resume the latest': (train, [seg, *common, '--resume']),
        'init_cfg': (train, [pretrained, *common]),
        'infer seg': (infer, [image, '--config', seg, '--checkpoint', file, '--out-dir', work_dir]),
        'infer det': (
            infer,
            [image, '--config', configs['det'], '--checkpoint', file, '--out-dir', work_dir],
        ),
    }[way]


WAYS = ['test', 'load_from', 'resume', 'resume the latest', 'init_cfg', 'infer seg', 'infer det']
CUT = pytest.param('cut.safetensors', marks=pytest.mark.long)
KINDS = ['zip.pth', 'legacy.pth', 'zip.safetensors', CUT]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('way', WAYS)
def test_every_tool_refuses_with_a_paragraph_and_status_2(
    way, kind, code, good, configs, small_data, tmp_path, capfd
):
    files, witness = code
    file = files.get(kind, tmp_path / kind)
    if kind not in files:
        file.write_bytes(good[2].read_bytes()[:-100])
    tool, argv = arguments(way, file, configs, small_data, tmp_path / 'work')
    status = tool.main([str(word) for word in argv])
    error = capfd.readouterr().err
    assert status == 2 and not witness.exists()
    assert error.splitlines()[-1].startswith(f'error: {file}')


@pytest.mark.parametrize('kind', KINDS)
def test_the_converter_refuses_with_a_paragraph_and_status_2(
    kind, code, good, tmp_path, monkeypatch, capfd
):
    files, witness = code
    file = files.get(kind, tmp_path / kind)
    if kind not in files:
        file.write_bytes(good[2].read_bytes()[:-100])
    target = tmp_path / 'out.safetensors'
    monkeypatch.setattr(sys, 'argv', ['convert_weights.py', str(file), str(target)])
    with pytest.raises(SystemExit) as raised:
        runpy.run_path(str(ROOT / 'tools' / 'convert_weights.py'), run_name='__main__')
    error = capfd.readouterr().err
    assert raised.value.code == 2 and not witness.exists() and not target.exists()
    assert error.startswith(f'error: {file}') and len(error.splitlines()) == 1
