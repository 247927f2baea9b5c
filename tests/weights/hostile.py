"""Checkpoints that try to do harm, and some that are only damaged: tables from name to content."""

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
from safetensors.torch import save

HUGE = 10**11


class Call:
    """Pickled as a function call, and a state for its result."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduced


def saved(content, legacy=False):
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def entries(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def zipped(parts, compression=zipfile.ZIP_STORED, copies=0):
    """An archive; of its last entry, any number of copies share the content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w', compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        entry = archive.infolist()[-1]
        for i in range(copies):
            twin = zipfile.ZipInfo(f'archive/data/copy{i}')
            for name in ('header_offset', 'file_size', 'compress_size', 'CRC'):
                setattr(twin, name, getattr(entry, name))
            archive.filelist.append(twin)
    return buffer.getvalue()


def attack(witness):
    """Unpickled, it opens the witness."""
    return {'state_dict': {'x': torch.ones(1)}, 'meta': Call(open, str(witness), 'w')}


def code(witness):
    """Code in every format and place."""
    content = saved(attack(witness))
    payload = pickle.dumps(attack(witness)['meta'], protocol=2)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode='w') as archive:
        for name in ('storages', 'tensors', 'pickle', '../escaped'):
            entry = tarfile.TarInfo(name)
            entry.size = len(payload)
            archive.addfile(entry, io.BytesIO(payload))
    return {
        'zip.pth': content,
        'zip.pt': content,
        'zip.safetensors': content,
        'legacy.pth': saved(attack(witness), legacy=True),
        'legacy.safetensors': saved(attack(witness), legacy=True),
        'pickle.pth': pickle.dumps(attack(witness)),
        'pickle of protocol 2.pth': payload,
        'second pickle.pth': pickle.dumps(torch.serialization.MAGIC_NUMBER, 2) + payload,
        'tar.pth': tar.getvalue(),
        'script.pth': zipped({**entries(content), 'archive/constants.pkl': b'\x80\x02).'}),
        'escape.pth': zipped({**entries(content), 'archive/../../escaped': b'x'}),
    }


def _numpy(code, layout, shape, content):
    kind = Call(np.dtype, code, False, True, state=(3, '|', *layout))
    reconstruct = np.empty(0).__reduce__()[0]
    return Call(reconstruct, np.ndarray, (0,), b'b', state=(1, shape, kind, False, content))


def _histories(count, length):
    """Histories that share their values."""
    values, histories = np.zeros(length), [HistoryBuffer() for _ in range(count)]
    for history in histories:
        history._log_history = history._count_history = values
    return histories


def contents():
    """What torch.save writes as a small file, but would take all memory or crash when read."""
    hexed = b'0123456789abcdef'
    for _ in range(40):
        hexed = Call(codecs.encode, hexed, 'hex')
    nothing = Call(codecs.encode, '', 'latin1')
    numbers, text, state = list(range(100_000)), 'x' * 100_000, OrderedDict(x={})
    field = {'a': (np.dtype('f8'), 1 << 30)}
    pointer = {'a': (np.dtype('O'), 0)}
    empty = (None, None, None, -1, -1, 0)
    versions = OrderedDict((str(i), {}) for i in range(20_000))
    return {
        'bytearray': Call(bytearray, HUGE),
        'hex of hex': hexed,
        'copies of a list': [Call(set, numbers) for _ in range(20_000)],
        'copies of a text': [Call(codecs.encode, text, 'latin1') for _ in range(100_000)],
        'copies of a history': _histories(20_000, 20_000),
        'copies of versions': [
            Call(OrderedDict, state={'_metadata': versions}) for _ in range(20_000)
        ],
        'expanded': torch.ones(1).expand(HUGE),
        'size of an expanded tensor': Call(torch.Size, torch.ones(1).byte().expand(3000)),
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
        'sparse': torch.sparse_coo_tensor([[0]], [1.0], (4,)),
        'quantized': torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        'state of a size': Call(torch.Size, (1,), state=state),
    }  # fmt: skip


def pickles(pickled):
    """Changed pickles of a file with five ones, from bytes that torch.save does not write."""
    double = b'q\x00h\x00\x86'  # each tuple twice in the next: hashing it takes 2**90 steps
    doubled = b'})' + double * 90
    changes = {
        'too large a storage': (b'K\x05tq', b'J' + struct.pack('<i', 10**9) + b'tq'),
        'tensor behind its storage': (b'QK\x00K\x05\x85', b'QK\x64K\x05\x85'),
        'tensor beyond its storage': (b'QK\x00K\x05\x85', b'QK\x00K\x32\x85'),
        'negative offset': (b'QK\x00K\x05\x85', b'QJ\xff\xff\xff\xffK\x05\x85'),
        'negative size': (b'QK\x00K\x05\x85', b'QK\x00J\xff\xff\xff\xff\x85'),
        'stride': (b'K\x01\x85', b'J\xff\xff\xff\x7f\x85'),
        'doubled tuples as a storage': (b'X\x01\x00\x00\x000', doubled[1:]),
    }
    for old, _ in changes.values():
        assert pickled.count(old) == 1, old
    in_a_set = b'}X\x01\x00\x00\x00xc__builtin__\nset\n])' + double * 90 + b'a\x85Rs.'
    return {
        'nested tuples': b'\x80\x02})' + b'\x85' * 10**6 + b'K\x01s.',
        'doubled tuples': b'\x80\x02' + doubled + b'K\x01s.',
        'doubled tuples in a set': b'\x80\x02' + in_a_set,
        'frozen set': b'\x80\x04}(' + doubled[1:] + b'\x91K\x01s.',
        **{name: pickled.replace(*change) for name, change in changes.items()},
    }


def headers(content):
    """Changed headers of a safetensors file."""
    header = json.loads(content[8 : 8 + struct.unpack('<Q', content[:8])[0]])

    def rewritten(**changes):
        text = json.dumps({**header, 'x': {**header['x'], **changes}}).encode()
        return struct.pack('<Q', len(text)) + text + content[-16:]

    deep = b'{"x":' + b'[' * 10**6
    return {
        'header of 2^60': struct.pack('<Q', 2**60) + content[8:],
        'header of 90 MB': struct.pack('<Q', 90_000_000) + content[8:],
        'deep header': struct.pack('<Q', len(deep)) + deep,
        'shape': rewritten(shape=[HUGE]),
        'end': rewritten(shape=[HUGE], data_offsets=[0, 4 * HUGE]),
        'start': rewritten(data_offsets=[-8, 8]),
        'dtype': rewritten(dtype='F64'),
    }


def bombs():
    """Small files that would take all memory or crash the interpreter."""
    files = {}
    for name, content in contents().items():
        checkpoint = {'state_dict': {'x': torch.ones(1)}, 'meta': content}
        files[f'{name}.pth'] = saved(checkpoint)
        if name in ('copies of a list', 'expanded'):  # the unpickler of both formats is the same
            files[f'{name} legacy.pth'] = saved(checkpoint, legacy=True)
    ones = entries(saved({'x': torch.ones(5)}))
    for name, pickled in pickles(ones['archive/data.pkl']).items():
        files[f'{name}.pth'] = zipped({**ones, 'archive/data.pkl': pickled})
    legacy = saved({'x': torch.ones(5)}, legacy=True)
    for old, new in ((b'K\x05N', b'J\x00\xca\x9a\x3bN'), (b'QK\x00K\x05\x85', b'QK\x00K\x32\x85')):
        assert legacy.count(old) == 1
        files[f'legacy with {new!r}.pth'] = legacy.replace(old, new)
    zeros = {**ones, 'archive/data/0': b'\0' * 2**28}
    files['deflated.pth'] = zipped(zeros, zipfile.ZIP_DEFLATED)
    files['overlapping.pth'] = zipped({**ones, 'archive/data/1': b'\0' * 2**20}, copies=5000)
    for name, content in headers(save({'x': torch.ones(4)})).items():
        files[f'{name}.safetensors'] = content
    return files


def good(weights):
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
    return {
        'zip.pth': saved(whole),
        'legacy.pth': saved(whole, legacy=True),
        'weights.safetensors': save({k: v.contiguous() for k, v in weights.items()}),
    }


def damaged(files):
    """Cut-off, empty and mislabeled files."""
    result = {}
    for name, content in files.items():
        for share in (0.0, 0.001, 0.1, 0.5, 0.9, 0.999):
            result[f'cut at {share} {name}'] = content[: int(len(content) * share)]
        other = 'pth' if name.endswith('.safetensors') else 'safetensors'
        result[f'mislabeled {name}.{other}'] = content
    foreign = {
        'png': b'\x89PNG\r\n\x1a\n' + b'\0' * 100,
        'text': b'weights\n' * 100,
        'zeros': b'\0' * 100,
        'gzip': b'\x1f\x8b\x08',
    }
    for name, content in foreign.items():
        result |= {f'{name}.{suffix}': content for suffix in ('pth', 'safetensors')}
    return result


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
