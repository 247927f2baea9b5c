"""The reader gives what ``torch.load`` gives, for everything that a checkpoint may contain."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file
from torch import nn

from xcit_mm.weights import CheckpointError, read_checkpoint

BASE = torch.arange(24.0).view(6, 4)
CONTENT = {
    'shared': [BASE, BASE[2:], BASE.t(), BASE[:, 1]],
    'types': [torch.ones(3).to(t) for t in (torch.bool, torch.half, torch.bfloat16, torch.cfloat)],
    'shapes': [torch.tensor(3.0), torch.empty(0, 3), torch.ones(1).expand(5)],
    'parameters': [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), requires_grad=False)],
    'torch': [torch.Size([2, 3]), torch.device('cuda:1'), torch.float64],
    'containers': [{1, 'a'}, Counter([3, 3, 5]), OrderedDict(a=1), {(1, 2): 3, None: 4, 2.5: 1}],
    'values': [b'\xff\x00', 1j, 2**70, -5, 0.1, True, None, 'é'],
    'numpy': [np.float32(2), np.int64(3), np.arange(6).reshape(2, 3)],
}


def check_equal(read, expected, name):
    if isinstance(expected, torch.Tensor):
        assert type(read) is type(expected) and not read._is_view(), name
        for trait in ('dtype', 'shape', 'requires_grad'):
            assert getattr(read, trait) == getattr(expected, trait), name
        assert read.stride() == expected.stride() and torch.equal(read, expected), name
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(read, expected)
    else:
        assert read == expected and type(read) is type(expected), name


@pytest.mark.parametrize('legacy', [False, True])
def test_everything_is_read_as_by_torch(legacy, tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    content = {'state_dict': model.state_dict(), **CONTENT}
    if not legacy:
        kinds = [getattr(torch, name, None) for name in ('uint16', 'float8_e5m2')]
        content['new types'] = [torch.ones(2).to(kind) for kind in kinds if kind is not None]
    torch.save(content, tmp_path / 'x.pth', _use_new_zipfile_serialization=not legacy)
    read = read_checkpoint(tmp_path / 'x.pth')
    assert read.keys() == content.keys()
    assert read['state_dict']._metadata == content['state_dict']._metadata
    check_equal(read['state_dict']['0.weight'], content['state_dict']['0.weight'], 'state_dict')
    for name in content.keys() - {'state_dict'}:
        for value, expected in zip(read[name], content[name], strict=True):
            check_equal(value, expected, name)
    read['shared'][0][2, 0] = 7
    assert read['shared'][1][0, 0] == 7


def test_histories_and_numbers_of_either_numpy_are_read(tmp_path):
    path = tmp_path / 'x.pth'
    values = {'f': np.float32(2), 'a': np.arange(3.0), 'h': HistoryBuffer([1.0, 2.0], [1, 1])}
    torch.save(values, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    # numpy renamed a module in 2.0.
    versions = {content.replace(b'numpy._core', b'numpy.core'), content}
    versions.add(content.replace(b'numpy.core', b'numpy._core'))
    assert len(versions) == 2
    for version in versions:
        path.write_bytes(version)
        for read in (torch.load(path, weights_only=True), read_checkpoint(path)):
            assert read['f'] == 2 and read['a'].tolist() == [0, 1, 2]
            history = read['h']
            assert type(history) is HistoryBuffer and type(history.data[0]) is np.ndarray
            history.update(3.0)
            assert history.mean() == 2.0 and history.current() == 3.0


@pytest.mark.parametrize('device', ['meta', pytest.param('cuda', marks=pytest.mark.cuda)])
@pytest.mark.parametrize('name', ['zip.pth', 'legacy.pth', 'x.safetensors'])
def test_tensors_are_on_the_device_that_was_asked_for(name, device, tmp_path):
    path, state = tmp_path / name, {'x': torch.ones(3), 'y': torch.ones(2, 2)}
    if name == 'x.safetensors':
        save_file(state, path)
    else:
        content = {**state, 'z': nn.Parameter(torch.ones(1)), 'seed': 3}
        torch.save(content, path, _use_new_zipfile_serialization=name == 'zip.pth')
    read = read_checkpoint(path, device)
    assert read.pop('seed', 3) == 3
    assert {tensor.device.type for tensor in read.values()} == {device}
    assert read['y'].shape == (2, 2)
    default = read_checkpoint(path, None)
    assert default['x'].device.type == 'cpu' and torch.equal(default['x'], state['x'])


def test_a_file_that_is_not_there_or_holds_no_dict(tmp_path):
    with pytest.raises(FileNotFoundError, match='there is no checkpoint'):
        read_checkpoint(tmp_path / 'x.pth')
    torch.save([torch.ones(1)], tmp_path / 'x.pth')
    with pytest.raises(CheckpointError, match=r'x\.pth contains a list, not a dict of weights'):
        read_checkpoint(tmp_path / 'x.pth')
