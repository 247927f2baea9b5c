"""Writes hostile checkpoints. Each function writes files into a folder and returns them."""

import codecs
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file

HUGE = 10**11


class Call:
    """Pickled as a function call, and a state for its result."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduced


def legacy(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


def code_files(folder, witness):
    """Files that write the witness when they are unpickled, in every format and place."""
    attack = {'state_dict': {'x': torch.ones(1)}, 'meta': Call(open, str(witness), 'w')}
    torch.save(attack, folder / 'zip.pth')
    torch.save(attack, folder / 'zip.pt')
    torch.save(attack, folder / 'zip.safetensors')
    legacy(attack, folder / 'legacy.pth')
    legacy(attack, folder / 'legacy.safetensors')
    (folder / 'pickle.pth').write_bytes(pickle.dumps(attack))
    payload = pickle.dumps(attack['meta'], protocol=2)
    (folder / 'pickle of protocol 2.pth').write_bytes(payload)
    first = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
    (folder / 'second pickle.pth').write_bytes(first + payload)
    with tarfile.open(folder / 'tar.pth', 'w') as archive:
        for name in ('storages', 'tensors', 'pickle', '../escaped'):
            entry = tarfile.TarInfo(name)
            entry.size = len(payload)
            archive.addfile(entry, io.BytesIO(payload))
    with zipfile.ZipFile(folder / 'zip.pth') as source:
        _zip(folder / 'script.pth', {**_entries(source), 'zip/constants.pkl': b'\x80\x02).'})
        _zip(folder / 'escape.pth', {**_entries(source), 'zip/../../escaped': b'x'})
    witness.unlink(missing_ok=True)  # pickling has opened it
    return sorted(folder.iterdir())


def _entries(archive):
    return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def _zip(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, 'w', compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def _numpy(code, layout, shape, content):
    kind = Call(np.dtype, code, False, True, state=(3, '|', *layout))
    reconstruct = np.empty(0).__reduce__()[0]
    return Call(reconstruct, np.ndarray, (0,), b'b', state=(1, shape, kind, False, content))


def _nested(count):
    """Opcodes of a dict with a tuple in a tuple in a tuple ... as its key."""
    return b'\x80\x02})' + b'\x85' * count + b'K\x01s.'


def _doubled(count):
    """The same with each tuple twice in the next: hashing it takes 2**count steps."""
    return b'\x80\x02})' + b'q\x00h\x00\x86' * count + b'K\x01s.'


def bomb_contents():
    """What torch.save writes as a small file, but would take all memory or crash when read."""
    hexed = b'0123456789abcdef'
    for _ in range(40):
        hexed = Call(codecs.encode, hexed, 'hex')
    nothing = Call(codecs.encode, '', 'latin1')
    numbers, text = list(range(100_000)), 'x' * 100_000
    field = {'a': (np.dtype('f8'), 1 << 30)}
    pointer = {'a': (np.dtype('O'), 0)}
    empty = (None, None, None, -1, -1, 0)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (4,))
    return {
        'bytearray': Call(bytearray, HUGE),
        'hex of hex': hexed,
        'copies of a list': [Call(set, numbers) for _ in range(20_000)],
        'copies of a text': [Call(codecs.encode, text, 'latin1') for _ in range(100_000)],
        'expanded': torch.ones(1).expand(HUGE),
        'many views': list(torch.ones(1000, 1000).expand(4000, 1000, 1000)),
        'storage': Call(torch.UntypedStorage, HUGE),
        'tensor': Call(torch.FloatTensor, HUGE),
        'array': Call(np.ndarray, (HUGE,)),
        'array of nothing': _numpy('V0', (None, None, None, 0, 1, 0), (10**15,), nothing),
        'field behind the end': _numpy('V8', (None, ('a',), field, 8, 1, 0), (4,), b'x' * 32),
        'pointers': _numpy('V8', (None, ('a',), pointer, 8, 1, 0), (4,), b'x' * 32),
        'short array': _numpy('f8', empty, (4, 1000), b'x' * 32),
        'long array': Call(
            np.empty(0).__reduce__()[0], np.ndarray, (HUGE,), b'b', state=(1, (0,), 0, 0, nothing)
        ),
        'sparse': sparse,
        'quantized': torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        'getattr': Call(getattr, HistoryBuffer, '__init__'),
    }  # fmt: skip


def bomb_files(folder):
    """Small files that would take all memory or crash the interpreter."""
    for name, content in bomb_contents().items():
        checkpoint = {'state_dict': {'x': torch.ones(1)}, 'meta': content}
        torch.save(checkpoint, folder / f'{name}.pth')
        if 'views' not in name:
            legacy(checkpoint, folder / f'{name} legacy.pth')
    torch.save({'x': torch.ones(5)}, folder / 'source.pth')
    with zipfile.ZipFile(folder / 'source.pth') as source:
        entries = _entries(source)
    (folder / 'source.pth').unlink()
    zeros = b'\0' * 2**28
    _zip(folder / 'deflated.pth', {**entries, 'source/data/0': zeros}, zipfile.ZIP_DEFLATED)
    pickled = entries['source/data.pkl']
    _zip(folder / 'nested tuples.pth', {**entries, 'source/data.pkl': _nested(10**6)})
    _zip(folder / 'doubled tuples.pth', {**entries, 'source/data.pkl': _doubled(90)})
    in_a_set = _doubled(90).replace(b'})', b'}X\x01\x00\x00\x00xc__builtin__\nset\n])', 1)
    in_a_set = in_a_set.replace(b'K\x01s.', b'a\x85Rs.')
    _zip(folder / 'doubled tuples in a set.pth', {**entries, 'source/data.pkl': in_a_set})
    as_a_key = pickled.replace(b'X\x01\x00\x00\x000', _doubled(90)[3:-4])
    assert as_a_key != pickled
    _zip(folder / 'doubled tuples as a storage.pth', {**entries, 'source/data.pkl': as_a_key})
    _overlapping(folder / 'overlapping.pth', entries)
    changes = {
        'too large a storage': (b'K\x05tq', b'J' + struct.pack('<i', 10**9) + b'tq'),
        'tensor behind its storage': (b'QK\x00K\x05\x85', b'QK\x64K\x05\x85'),
        'tensor beyond its storage': (b'QK\x00K\x05\x85', b'QK\x00K\x32\x85'),
        'negative offset': (b'QK\x00K\x05\x85', b'QJ\xff\xff\xff\xffK\x05\x85'),
        'negative size': (b'QK\x00K\x05\x85', b'QK\x00J\xff\xff\xff\xff\x85'),
        'stride': (b'K\x01\x85', b'J\xff\xff\xff\x7f\x85'),
    }
    for name, (old, new) in changes.items():
        assert pickled.count(old) == 1, name
        _zip(folder / f'{name}.pth', {**entries, 'source/data.pkl': pickled.replace(old, new)})
    whole = io.BytesIO()
    legacy({'x': torch.ones(5)}, whole)
    for name in ('too large a storage', 'tensor beyond its storage'):
        old, new = changes[name]
        old, new = old.replace(b'tq', b'Ntq'), new.replace(b'tq', b'Ntq')
        assert whole.getvalue().count(old) == 1, name
        (folder / f'{name} legacy.pth').write_bytes(whole.getvalue().replace(old, new))
    for name, content in safetensors_bombs(folder).items():
        (folder / f'{name}.safetensors').write_bytes(content)
    return sorted(folder.iterdir())


def _overlapping(path, entries):
    """Many directory entries that share the same megabyte."""
    with zipfile.ZipFile(path, 'w') as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        archive.writestr('source/data/1', b'\0' * 2**20)
        entry = archive.getinfo('source/data/1')
        for i in range(2, 5000):
            twin = zipfile.ZipInfo(f'source/data/{i}')
            for name in ('header_offset', 'file_size', 'compress_size', 'CRC'):
                setattr(twin, name, getattr(entry, name))
            archive.filelist.append(twin)


def safetensors_bombs(folder):
    path = folder / 'source'
    save_file({'x': torch.ones(4)}, path)
    whole = path.read_bytes()
    path.unlink()
    header = json.loads(whole[8 : 8 + struct.unpack('<Q', whole[:8])[0]])

    def rewritten(**changes):
        text = json.dumps({**header, 'x': {**header['x'], **changes}}).encode()
        return struct.pack('<Q', len(text)) + text + whole[-16:]

    deep = b'{"x":' + b'[' * 10**6
    return {
        'header of 2^60': struct.pack('<Q', 2**60) + whole[8:],
        'header of 90 MB': struct.pack('<Q', 90_000_000) + whole[8:],
        'deep header': struct.pack('<Q', len(deep)) + deep,
        'shape': rewritten(shape=[HUGE]),
        'end': rewritten(shape=[HUGE], data_offsets=[0, 4 * HUGE]),
        'start': rewritten(data_offsets=[-8, 8]),
        'dtype': rewritten(dtype='F64'),
    }


def good_files(folder, weights):
    """One file in each format, with the weights of a network and what mmengine adds to them."""
    whole = {
        'meta': {'epoch': 1, 'iter': 2, 'cfg': 'a = 1'},
        'state_dict': OrderedDict(weights),
        'message_hub': {
            'log_scalars': {'loss': HistoryBuffer([1.0, 2.0], [1, 1])},
            'runtime_info': {'best_score': np.float64(3)},
            'resumed_keys': {},
        },
    }
    torch.save(whole, folder / 'zip.pth')
    legacy(whole, folder / 'legacy.pth')
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / 'weights.safetensors')
    return [folder / name for name in ('zip.pth', 'legacy.pth', 'weights.safetensors')]


def damaged_files(folder, sources):
    """Cut-off, empty and mislabeled files."""
    for source in sources:
        content = source.read_bytes()
        for share in (0.0, 0.001, 0.1, 0.5, 0.9, 0.999):
            cut = content[: int(len(content) * share)]
            (folder / f'{source.stem} cut at {share}{source.suffix}').write_bytes(cut)
        other = '.pth' if source.suffix == '.safetensors' else '.safetensors'
        (folder / f'{source.stem} mislabeled{other}').write_bytes(content)
    contents = {
        'png': b'\x89PNG\r\n\x1a\n' + b'\0' * 100,
        'text': b'weights\n' * 100,
        'zeros': b'\0' * 100,
        'gzip': b'\x1f\x8b\x08',
    }
    for name, content in contents.items():
        for suffix in ('.pth', '.pt', '.safetensors'):
            (folder / f'{name}{suffix}').write_bytes(content)
    return sorted(folder.iterdir())
