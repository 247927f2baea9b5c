"""Importing the package leaves mmengine's reader alone; ``use_strict_reader()`` replaces it."""

import subprocess
import sys

import pytest
import torch
from mmengine.runner import CheckpointLoader

from tests.tiny import ROOT
from xcit_mm.weights import CheckpointError, sources, use_strict_reader
from xcit_mm.weights.sources import UnknownWeightsError, load_from_strict_reader

from . import hostile

# What a user's own program finds after the import, and how it reads files before the opt-in and
# after it.
PROGRAM = """
import sys
from mmengine.runner import CheckpointLoader, checkpoint

schemes, functions = dict(CheckpointLoader._schemes), dict(vars(checkpoint))
import xcit_mm

changed = [p for p, loader in schemes.items() if CheckpointLoader._schemes[p] is not loader]
changed += [name for name, value in vars(checkpoint).items() if functions.get(name) is not value]
print('changed', changed)
print('added', sorted(set(CheckpointLoader._schemes) - set(schemes)))
for _ in range(2):
    for file in sys.argv[1:]:
        try:
            CheckpointLoader.load_checkpoint(file, 'cpu', logger='silent')
            print('read')
        except Exception as error:
            print(type(error).__name__)
    xcit_mm.weights.use_strict_reader()
"""


def test_import_replaces_nothing_and_other_peoples_files_stay_readable(tmp_path):
    """torch runs no code either; it reads sparse tensors, which the strict reader refuses."""
    witness, sparse = tmp_path / 'witness', tmp_path / 'sparse.pth'
    torch.save(hostile.attack(witness), tmp_path / 'code.pth')
    torch.save({'state_dict': {'other': torch.eye(2).to_sparse()}}, sparse)
    command = [sys.executable, '-c', PROGRAM, str(tmp_path / 'code.pth'), str(sparse)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    added = sorted([sources.SAFETENSORS, 'timm://', 'xcit://'])
    assert run.stdout.splitlines() == [
        'changed []',
        f'added {added}',
        *('UnpicklingError', 'read'),
        *('UnsafeCheckpointError', 'UnsafeCheckpointError'),
    ]
    assert not witness.exists()


def test_everything_but_remote_storages_is_read_strictly(strict_reader):
    foreign = {
        prefix
        for prefix, loader in CheckpointLoader._schemes.items()
        if not loader.__module__.startswith('xcit_mm.')
    }
    assert foreign == {r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'pavi://'}
    before = dict(CheckpointLoader._schemes)
    use_strict_reader()
    assert dict(CheckpointLoader._schemes) == before


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
    monkeypatch.setattr(sources.zoo, 'get_mmcls_models', lambda: address)
    monkeypatch.setattr(sources.zoo, 'get_torchvision_models', lambda: address)
    monkeypatch.setattr(sources.zoo, 'get_deprecated_model_names', lambda: {'old': 'away'})
    load = CheckpointLoader.load_checkpoint
    assert load('openmmlab://local', 'cpu')['state_dict'].keys() == state.keys() and asked == []
    for name in ('open-mmlab://away', 'openmmlab://old', 'torchvision://name', 'modelzoo://name'):
        assert load(name, 'cpu')['state_dict'].keys() == state.keys()
    assert list(load('mmcls://name', 'cpu')['state_dict']) == ['x']
    assert asked == ['https://zoo/w.pth'] * 2 + [address['name']] * 3
    for scheme in ('torchvision', 'mmcls', 'openmmlab'):
        with pytest.raises(UnknownWeightsError, match='none such'):
            load(f'{scheme}://none such', 'cpu')


def test_a_safetensors_file_needs_no_opt_in(tmp_path):
    for name in ('w.safetensors', '/a b/w.safetensors', '~/w.safetensors', 'C:/w.safetensors'):
        assert CheckpointLoader._get_checkpoint_loader(name) is load_from_strict_reader
    for name in ('s3://w.safetensors', 'https://host/w.safetensors', 'w.safetensors.pth'):
        assert CheckpointLoader._get_checkpoint_loader(name) is not load_from_strict_reader
    (tmp_path / 'w.safetensors').write_bytes(b'nonsense')
    with pytest.raises(CheckpointError, match=r'w\.safetensors'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'w.safetensors'))
