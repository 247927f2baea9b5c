"""``xcit-mm retrieve``: index, query and evaluate, from files to files."""

import dataclasses
import json
import os
import re

import cv2
import numpy as np
import pytest
import timm
import torch

from xcit_mm.retrieval import Index, Settings
from xcit_mm_cli.retrieve import SETTINGS

from .. import tiny
from ..tiny import call

COUNT = 12
SMALL = ('--resolution', 96)
PATCHES = ('--codebook', 16, '--patch-dims', 32)
WAYS = {
    'class_token': ('--descriptor', 'class_token'),
    'reduced': ('--dims', 8, '--whiten'),
    'vlad': ('--descriptor', 'vlad', *PATCHES),
    'asmk': ('--descriptor', 'asmk', *PATCHES, '--assignments', 2),
    'real asmk': ('--descriptor', 'asmk', *PATCHES, '--real'),
}


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    """Smooth images in colors of their own, and one of them a little cropped, darker and noisy."""
    folder = tmp_path_factory.mktemp('photos')
    rng = np.random.default_rng(0)
    (folder / 'all').mkdir()
    for number in range(COUNT):
        image = cv2.resize(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8), (140, 100))
        cv2.imwrite(str(folder / 'all' / f'{number:02d}.png'), image)
        if number == 7:
            changed = cv2.resize(image[2:98, 3:137], (160, 120)) * 0.95
            changed += rng.normal(0, 2, changed.shape)
            cv2.imwrite(str(folder / 'changed.jpg'), np.clip(changed, 0, 255))
    return folder


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp('weights') / 'n12.pth'
    torch.save(tiny.classifier('n12', patch_size=16, num_classes=10).state_dict(), path)
    return path


@pytest.mark.parametrize('way', WAYS)
def test_a_changed_image_finds_its_original(way, photos, weights, tmp_path, capsys):
    index, out = tmp_path / 'index', tmp_path / 'out'
    words = [photos / 'all', '--index', index, '--checkpoint', weights, *SMALL, *WAYS[way]]
    assert call('retrieve', 'index', *words) == 0
    assert f'{COUNT} images in the index {index}\n' in capsys.readouterr().out
    queries = [photos / 'changed.jpg', photos / 'all' / '03.png']
    words = [*queries, '--index', index, '--out-dir', out, '--most', 4]
    assert call('retrieve', 'query', *words) == 0
    results = json.loads((out / 'results.json').read_text())
    assert results.keys() == set(map(str, queries))
    changed, same = results.values()
    assert changed[0][0] == str(photos / 'all' / '07.png') and len(changed) == len(same) == 4
    assert str(photos / 'all' / '03.png') not in [name for name, _ in same]  # the query itself
    assert [score for _, score in same] == sorted((score for _, score in same), reverse=True)
    page = (out / 'index.html').read_text()
    # Two queries, and four images for each.
    assert len(re.findall(r'<img [^>]*src="data:image/jpeg;base64,[\w+/=]{99,}">', page)) == 10
    assert 'http' not in page


def test_an_index_is_extended_and_resumed(photos, weights, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('xcit_mm.retrieval.index.SHARD', 5)
    folder, images = tmp_path / 'index', sorted((photos / 'all').iterdir())
    (tmp_path / 'damaged.png').write_bytes(b'no image')
    words = [*images[:7], tmp_path / 'damaged.png', '--index', folder]
    assert call('retrieve', 'index', *words) == 2 and '--checkpoint' in capsys.readouterr().err
    assert call('retrieve', 'index', *words, '--checkpoint', weights, *SMALL) == 1
    assert 'skipped' in capsys.readouterr().out
    assert [len(shard['vectors']) for shard in Index(folder).shards] == [5, 2]
    opened = len(os.listdir('/proc/self/fd'))
    index = Index(folder)
    assert len(os.listdir('/proc/self/fd')) == opened  # an index may have any number of shards
    # A process that is killed leaves a shard without its names, which does not count.
    (folder / '00001.json').unlink()
    assert Index(folder).names == [str(path) for path in images[:5]]
    assert call('retrieve', 'index', photos / 'all', '--index', folder) == 0
    index = Index(folder)
    assert index.names == [str(path) for path in images] and len(index.arrays) == 3
    assert all(isinstance(shard['vectors'], np.memmap) for shard in index.shards)
    # All at once gives the same.
    words = ['--index', tmp_path / 'whole', '--checkpoint', weights, *SMALL]
    assert call('retrieve', 'index', photos / 'all', *words) == 0
    parts = [np.concatenate([s['vectors'] for s in i.shards]) for i in (index, Index(words[1]))]
    assert np.array_equal(*parts)
    # The same files by other names are not indexed again.
    monkeypatch.chdir(photos)
    words = ['all', photos / 'all', '--index', tmp_path / 'twice', '--checkpoint', weights, *SMALL]
    assert call('retrieve', 'index', *words) == 0 and len(Index(words[3]).names) == COUNT
    capsys.readouterr()
    assert call('retrieve', 'index', photos / 'all', '--index', folder, '--resolution', 64) == 2
    assert 'was made with resolution=96' in capsys.readouterr().err


def test_other_weights_and_damaged_indexes_are_refused(photos, tmp_path, capsys, monkeypatch):
    weights, folder = tmp_path / 'weights.pth', tmp_path / 'index'
    model = tiny.classifier('n12', patch_size=16)
    torch.save(model.state_dict(), weights)
    monkeypatch.chdir(tmp_path)
    words = [photos / 'all', '--index', folder, '--checkpoint', weights.name, *SMALL]
    assert call('retrieve', 'index', *words) == 0
    monkeypatch.chdir('/')  # the index remembers where the weights are
    state = model.state_dict()
    state['cls_token'] += 1
    torch.save(state, weights)
    query = ('query', photos / 'changed.jpg', '--index', folder, '--out-dir', tmp_path)
    assert call('retrieve', *query) == 2 and 'other weights' in capsys.readouterr().err
    np.save(folder / '00000_vectors.npy', np.array([{}]), allow_pickle=True)
    assert call('retrieve', *query) == 2 and 'is damaged' in capsys.readouterr().err
    (folder / 'index.json').unlink()
    assert call('retrieve', *query) == 2 and 'is not an index' in capsys.readouterr().err


def test_weights_without_a_class_token_need_another_descriptor(photos, tmp_path, capsys):
    torch.save(tiny.backbone('n12', patch_size=16).state_dict(), tmp_path / 'b.pth')
    words = [photos / 'all', '--checkpoint', tmp_path / 'b.pth', *SMALL, '--index']
    assert call('retrieve', 'index', *words, tmp_path / 'i') == 2
    assert 'Use --descriptor vlad or asmk' in capsys.readouterr().err
    assert call('retrieve', 'index', *words, tmp_path / 'i', *WAYS['vlad']) == 0  # as it says
    query = [photos / 'changed.jpg', '--index', tmp_path / 'i', '--out-dir', tmp_path]
    assert call('retrieve', 'query', *query, '--descriptor', 'asmk') == 2
    assert 'was made with descriptor=vlad' in capsys.readouterr().err
    (tmp_path / 'i' / 'index.json').unlink()
    assert call('retrieve', 'index', *words, tmp_path / 'i', *WAYS['vlad']) == 2
    assert 'has parts of another index' in capsys.readouterr().err


@pytest.mark.parametrize(
    'options, message',
    [(('--descriptor', 'vlad', '--codebook', 5000), '5000 words needs at least as many patches'),
     (('--dims', 64), 'PCA to 64 dimensions')],
)  # fmt: skip
def test_too_few_images_to_learn_from(options, message, photos, weights, tmp_path, capsys):
    words = [photos / 'all', '--index', tmp_path, '--checkpoint', weights, *SMALL, *options]
    assert call('retrieve', 'index', *words) == 2
    assert message in capsys.readouterr().err and not any(tmp_path.iterdir())


@pytest.mark.parametrize('learn_from', [False, True])
def test_evaluation_on_the_layouts_of_both_benchmarks(learn_from, photos, tmp_path, capsys):
    """With a network of timm; copies of queries are found first."""
    torch.save(timm.create_model('resnet10t').state_dict(), tmp_path / 'r.pth')
    data = tmp_path / 'data'
    data.mkdir()
    images = [cv2.imread(str(path)) for path in sorted((photos / 'all').iterdir())]
    for group, image in enumerate(images[:6]):
        for number in range(2):
            cv2.imwrite(str(data / f'10{group:02d}{number:02d}.png'), image)
    words = [data, '--checkpoint', tmp_path / 'r.pth', '--model', 'resnet10t', *SMALL]
    words += ['--learn-from', photos / 'all'] if learn_from else []
    words += ['--descriptor', 'asmk', '--codebook', 16, '--patch-dims', 16]
    assert call('retrieve', 'evaluate', *words) == 0
    assert capsys.readouterr().out == 'mAP 100.0\n'
    # A query is a box in an image around a copy of another one.
    height, width = images[0].shape[:2]
    framed = cv2.copyMakeBorder(images[0], 60, 60, 60, 60, cv2.BORDER_CONSTANT, value=(0, 255, 0))
    cv2.imwrite(str(data / 'query.png'), framed)
    truth = {'easy': [0], 'hard': [1], 'junk': [2], 'bbx': [60, 60, 60 + width, 60 + height]}
    names = ['100001', '100000', '100101', '100201']
    content = {'imlist': names, 'qimlist': ['query'], 'gnd': [truth]}
    (data / 'gnd_small.json').write_text(json.dumps(content))
    assert call('retrieve', 'evaluate', *words) == 0
    assert capsys.readouterr().out == 'medium 100.0\nhard 100.0\n'
    truth['bbx'] = [60, 60, 60, 60]
    (data / 'gnd_small.json').write_text(json.dumps(content))
    assert call('retrieve', 'evaluate', *words) == 2
    assert 'query.png is empty' in capsys.readouterr().err


def test_the_help_states_the_defaults():
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    names = [name.replace('-', '_') for name in SETTINGS]
    assert {*names, 'whiten', 'real'} == defaults.keys()
    for name, options in SETTINGS.items():
        stated = re.search(r'\(default: (.*)\)', options['help'])
        if stated and defaults[name.replace('-', '_')] is not None:
            assert stated[1] == str(defaults[name.replace('-', '_')])
