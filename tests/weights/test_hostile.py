"""Every command refuses hostile checkpoints; none runs code, crashes or exhausts memory."""

import json
import subprocess
import sys

import pytest
import torch

from xcit_mm_cli.app import main

from ..tiny import ROOT, backbone, write_config
from . import hostile

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


def test_hostile_files_are_refused_by_name_with_little_memory(tmp_path):
    witness = tmp_path / 'witness'
    good, code = hostile.good(backbone().state_dict()), hostile.code(witness)
    files = code | hostile.bombs() | hostile.damaged(good)
    files |= {f'good {name}': content for name, content in good.items()}
    assert len(files) > 80
    folder = hostile.write(tmp_path / 'files', files)
    results, memory = read_guarded('read', folder)
    assert memory < MEMORY
    assert [result['what'] for result in results] == sorted(files)
    # Nothing was run or written.
    assert sorted(tmp_path.rglob('*')) == sorted([folder, *folder.iterdir()])
    for result in results:
        if result['what'].startswith('good '):
            assert result['error'] is None, result
        else:
            assert result['error'] in EXPECTED and result['what'] in result['text'], result
    unsafe = {r['what'] for r in results if r['error'] == 'UnsafeCheckpointError'}
    assert {'zip.pth', 'zip.pt', 'legacy.pth', 'second pickle.pth', 'escape.pth'} <= unsafe
    # The attacks are real.
    for name in ('zip.pth', 'legacy.pth'):
        torch.load(folder / name, weights_only=False)['meta'].close()
        assert witness.exists()
        witness.unlink()


@pytest.mark.parametrize('count', [40, pytest.param(500, marks=pytest.mark.long)])
def test_a_file_with_a_flipped_bit_is_read_or_gives_an_error(count, tmp_path):
    """Files are loaded into a network in three formats, and resumed from."""
    good = hostile.good(backbone().state_dict())
    results, memory = read_guarded('flip', count, hostile.write(tmp_path / 'good', good))
    assert len(results) == 4 * count and memory < MEMORY
    for result in results:
        assert result['error'] in {None, *EXPECTED, 'WeightsError', 'UserError'}, result
        assert result['error'] is None or result['text'], result
    for name in (*good, 'epoch_1.pth'):
        kinds = {result['error'] for result in results if result['what'] == name}
        assert None in kinds and kinds & EXPECTED, name


def arguments(way, file, small_data, folder):
    """A command and the arguments with which it reads a checkpoint."""
    image = sorted((small_data / 'coco' / 'val2017').glob('*.jpg'))[0]
    config = write_config(folder, 'det' if way == 'infer det' else 'seg', small_data)
    work_dir = folder / 'work'
    common = ['--work-dir', work_dir]
    if way == 'resume the latest':
        work_dir.mkdir()
        (work_dir / 'last_checkpoint').write_text(str(file))
    pretrained = folder / 'pretrained.py'
    backbone = f'init_cfg=dict(_delete_=True, type="Pretrained", checkpoint="{file}")'
    pretrained.write_text(f'_base_ = "{config}"\nmodel = dict(backbone=dict({backbone}))\n')
    predict = [image, '--config', config, '--checkpoint', file, '--out-dir', work_dir]
    return {
        'test': ['test', config, file, *common],
        'load_from': ['train', config, *common, '--cfg-options', f'load_from={file}'],
        'resume': ['train', config, *common, '--resume', file],
        'resume the latest': ['train', config, *common, '--resume'],
        'init_cfg': ['train', pretrained, *common],
        'infer seg': ['infer', *predict],
        'infer det': ['infer', *predict],
        'convert': ['convert-weights', file, folder / 'out.safetensors'],
    }[way]


WAYS = 'test', 'load_from', 'resume', 'resume the latest', 'init_cfg', 'infer seg', 'infer det'


@pytest.mark.parametrize('way', [*WAYS, 'convert'])
def test_every_command_refuses_with_a_sentence_and_status_2(way, small_data, tmp_path, capfd):
    witness = tmp_path / 'witness'
    hostile.write(tmp_path, {'zip.pth': hostile.saved(hostile.attack(witness))})
    words = arguments(way, tmp_path / 'zip.pth', small_data, tmp_path)
    status = main([str(word) for word in words])
    error = capfd.readouterr().err
    assert status == 2 and not witness.exists()
    assert error.splitlines()[-1].startswith(f'error: {tmp_path / "zip.pth"} was refused')
