"""Importing the package leaves mmengine's reader alone; ``use_strict_reader()`` replaces it."""

import subprocess
import sys

import pytest
import torch
from mmengine.runner import CheckpointLoader

from tests.tiny import ROOT, write_config
from xcit_mm.weights import CheckpointError, sources, strict, use_strict_reader
from xcit_mm.weights.sources import UnknownWeightsError, load_from_file

from . import hostile

POLITE = """
from mmengine.runner import CheckpointLoader, checkpoint

schemes, functions = dict(CheckpointLoader._schemes), dict(vars(checkpoint))
import xcit_mm

changed = [p for p, loader in schemes.items() if CheckpointLoader._schemes[p] is not loader]
changed += [name for name, value in vars(checkpoint).items() if functions.get(name) is not value]
print('changed', changed)
print('added', sorted(set(CheckpointLoader._schemes) - set(schemes)))
"""


def test_import_adds_our_sources_and_replaces_nothing():
    run = subprocess.run(
        [sys.executable, '-c', POLITE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    added = sorted([sources.SAFETENSORS, 'timm://', 'xcit://'])
    assert run.stdout.splitlines()[-2:] == ['changed []', f'added {added}']


# Reads a checkpoint as a user's own program does, with or without the opt-in.
READ = """
import sys
import xcit_mm
from mmengine.runner import load_checkpoint
import torch

if 'strict' in sys.argv:
    xcit_mm.weights.use_strict_reader()
load_checkpoint(torch.nn.Linear(1, 1), sys.argv[1])
"""


def read(path, *options):
    command = [sys.executable, '-c', READ, str(path), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_without_the_opt_in_torch_reads_and_runs_no_code(tmp_path):
    witness = tmp_path / 'witness'
    file = next(f for f in hostile.code_files(tmp_path, witness) if f.name == 'zip.pth')
    witness.unlink(missing_ok=True)
    plain, guarded = read(file), read(file, 'strict')
    assert plain.returncode == guarded.returncode == 1 and not witness.exists()
    assert 'UnpicklingError' in plain.stderr and 'UnsafeCheckpointError' not in plain.stderr
    assert 'UnsafeCheckpointError' in guarded.stderr


def test_other_peoples_checkpoints_stay_readable_without_the_opt_in(tmp_path):
    """Sparse tensors are refused only after the opt-in."""
    path = tmp_path / 'sparse.pth'
    torch.save({'state_dict': {'other': torch.eye(2).to_sparse()}}, path)
    assert read(path).returncode == 0
    assert 'CheckpointError' in read(path, 'strict').stderr


def test_a_second_call_changes_nothing(strict_reader):
    before = dict(CheckpointLoader._schemes)
    use_strict_reader()
    assert dict(CheckpointLoader._schemes) == before


def test_everything_but_remote_storages_is_read_strictly(strict_reader):
    foreign = {
        prefix
        for prefix, loader in CheckpointLoader._schemes.items()
        if not loader.__module__.startswith('xcit_mm.')
    }
    assert foreign == {r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'pavi://'}


def test_model_zoos_give_the_address_and_the_strict_reader_reads(
    strict_reader, tmp_path, monkeypatch
):
    state = {'backbone.x': torch.ones(1), 'head.x': torch.zeros(1)}
    torch.save({'state_dict': state}, tmp_path / 'w.pth')
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    (tmp_path / 'open_mmlab.json').write_text('{"local": "w.pth", "away": "https://zoo/w.pth"}')
    asked = []
    monkeypatch.setattr(sources, 'download', lambda url: asked.append(url) or tmp_path / 'w.pth')
    address = {'name': 'https://zoo/name.pth'}
    monkeypatch.setattr(strict.zoo, 'get_mmcls_models', lambda: address)
    monkeypatch.setattr(strict.zoo, 'get_torchvision_models', lambda: address)
    load = CheckpointLoader.load_checkpoint
    assert load('openmmlab://local', 'cpu')['state_dict'].keys() == state.keys() and asked == []
    assert load('open-mmlab://away', 'cpu')['state_dict'].keys() == state.keys()
    assert load('torchvision://name', 'cpu')['state_dict'].keys() == state.keys()
    assert list(load('mmcls://name', 'cpu')['state_dict']) == ['x']
    assert asked == ['https://zoo/w.pth', *[address['name']] * 2]
    for scheme in ('torchvision', 'mmcls', 'openmmlab'):
        with pytest.raises(UnknownWeightsError, match='none such'):
            load(f'{scheme}://none such', 'cpu')


def test_a_safetensors_file_needs_no_opt_in(tmp_path):
    for name in ('w.safetensors', '/a b/w.safetensors', '~/w.safetensors', 'C:/w.safetensors'):
        assert CheckpointLoader._get_checkpoint_loader(name) is load_from_file
    for name in ('s3://w.safetensors', 'https://host/w.safetensors', 'w.safetensors.pth'):
        assert CheckpointLoader._get_checkpoint_loader(name) is not load_from_file
    (tmp_path / 'w.safetensors').write_bytes(b'nonsense')
    with pytest.raises(CheckpointError, match=r'w\.safetensors'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'w.safetensors'))


def test_the_tools_opt_in(small_data, tmp_path):
    """In a separate process, where nothing else has opted in."""
    witness = tmp_path / 'witness'
    file = next(f for f in hostile.code_files(tmp_path, witness) if f.name == 'zip.pth')
    witness.unlink(missing_ok=True)
    config = write_config(tmp_path, 'seg', small_data)
    command = [sys.executable, 'tools/test.py', config, file, '--work-dir', tmp_path / 'work']
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 2 and not witness.exists()
    assert run.stderr.splitlines()[-1].startswith(f'error: {file} was refused')
