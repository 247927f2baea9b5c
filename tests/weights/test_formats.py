"""Weights of every published format load as they are, through mmengine's own reader."""

import contextlib
import re

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint
from safetensors.torch import load_file, save_file
from torch import nn

from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.weights import WeightsError, convert
from xcit_mm_runtime.errors import UserError

from ..tiny import randomize

ARCH = dict(embed_dims=32, depth=4, num_heads=4)
OUT = (0, 1, 2, 3)


def rename(state, rules):
    out = {}
    for name, tensor in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        out[name] = tensor
    return out


def stem_index(match):
    part = {'conv': '0', 'norm': '1'}[match[2]]
    return f'patch_embed.proj.{2 * int(match[1])}.{part}.'


COMMON = [
    (r'^patch_embed\.layers\.(\d)\.(conv|norm)\.', stem_index),
    (r'^layers\.(\d+)\.xca\.', r'blocks.\1.attn.'),
    (r'^layers\.', 'blocks.'),
    (r'\.lpi\.norm\.', '.local_mp.bn.'),
    (r'\.lpi\.', '.local_mp.'),
    (r'^cls_layers\.', 'cls_attn_blocks.'),
    (r'\.ffn\.', '.mlp.'),
]


def to_released(state):
    return rename(
        state,
        [
            (r'^pos_embed\.projection\.', 'pos_embeder.token_projection.'),
            (r'^pyramid\.levels\.0\.', 'fpn1.'),
            (r'^pyramid\.levels\.1\.', 'fpn2.'),
            *COMMON,
        ],
    )


def split_qkv(state, pattern):
    out = {}
    for name, tensor in state.items():
        if re.match(pattern, name) and '.attn.qkv.' in name:
            for part, piece in zip('qkv', tensor.chunk(3), strict=True):
                out[name.replace('.qkv.', f'.{part}.')] = piece
        else:
            out[name] = tensor
    return out


def to_timm(state):
    renamed = rename(state, [(r'^pos_embed\.projection\.', 'pos_embed.token_projection.'), *COMMON])
    return split_qkv(renamed, r'cls_attn_blocks')


def to_mmpretrain(state):
    renamed = rename(
        state,
        [
            (r'^pos_embed\.projection\.', 'pos_embed.token_projection.conv.'),
            (r'^patch_embed\.layers\.(\d)\.norm\.', r'patch_embed.proj.\1.bn.'),
            (r'^patch_embed\.layers\.', 'patch_embed.proj.'),
            (r'^layers\.(\d+)\.xca\.', r'xca_layers.\1.attn.'),
            (r'^layers\.', 'xca_layers.'),
            (r'^cls_layers\.', 'ca_layers.'),
            (r'\.lpi\.norm\.', '.local_mp.conv1.bn.'),
            (r'\.lpi\.(conv\d)\.', r'.local_mp.\1.conv.'),
            (r'\.ffn\.fc1\.', '.ffn.layers.0.0.'),
            (r'\.ffn\.fc2\.', '.ffn.layers.1.'),
        ],
    )
    renamed = {
        name if name.startswith('head.') else f'backbone.{name}': tensor
        for name, tensor in split_qkv(renamed, 'ca_layers').items()
    }
    return rename(renamed, [(r'^head\.', 'head.fc.')])


WRAPPED = {
    'own': lambda s: s,
    'released': lambda s: {'model': to_released(s)},
    'dino teacher': lambda s: {'student': {}, 'teacher': to_released(s)},
    'dino prefixed': lambda s: {f'module.backbone.{k}': v for k, v in to_released(s).items()},
    'timm': to_timm,
    'mmpretrain': lambda s: {'meta': {}, 'state_dict': to_mmpretrain(s)},
}


def classifier(**kwargs):
    return XCiTClassifier(ARCH, **{'num_classes': 10, **kwargs})


def backbone(patch_size=16, **kwargs):
    return XCiT(**{'arch': ARCH, 'patch_size': patch_size, 'out_indices': OUT, **kwargs})


def format_of(kind):
    return 'released' if kind.startswith('dino') else kind


def check_equal(model, expected, parts=''):
    """Check the weights of a model whose names start with one of these parts."""
    for name, tensor in model.state_dict().items():
        if name.startswith(parts) and not name.endswith('num_batches_tracked'):
            assert torch.equal(tensor, expected[name]), name


TRUNK = ('patch_embed', 'pos_embed', 'layers')


@pytest.mark.parametrize('kind', WRAPPED)
def test_classifier_files_load_into_classifier_and_backbone(kind, tmp_path, capfd):
    expected = randomize(classifier()).state_dict()
    file = WRAPPED[kind](expected)
    target, dense = classifier(), backbone()
    before = {name: tensor.clone() for name, tensor in dense.state_dict().items()}
    target.load_state_dict(file)
    check_equal(target, expected)
    dense.load_state_dict(file)
    check_equal(dense, expected, TRUNK)
    check_equal(dense, before, 'pyramid')
    # The same from a file, through mmengine, as `init_cfg` and `load_from` do it.
    MMLogger.get_instance(str(tmp_path))  # a logger that writes to this test's output
    torch.save(file, tmp_path / 'weights.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'weights.pth'))
    loaded = MODELS.build(dict(type='XCiT', arch=ARCH, out_indices=OUT, init_cfg=init_cfg))
    loaded.init_weights()
    check_equal(loaded, expected, TRUNK)
    text = ''.join(capfd.readouterr())
    if kind != 'own':
        assert f'format "{format_of(kind)}"' in text
        assert 'not used: cls_layers, cls_token, head, norm' in text
        assert 'not in the file: pyramid' in text


@pytest.mark.parametrize('patch_size', [8, 16])
def test_released_dense_files_load_into_backbone_and_detector(patch_size, tmp_path):
    source = randomize(backbone(patch_size)).state_dict()
    released = {f'backbone.{name}': tensor for name, tensor in to_released(source).items()}
    state = {**released, 'neck.x': torch.ones(1)}
    torch.save({'meta': {}, 'state_dict': state}, tmp_path / 'mask_rcnn.pth')
    dense, detector = backbone(patch_size), nn.Module()
    load_checkpoint(dense, str(tmp_path / 'mask_rcnn.pth'), strict=True)
    check_equal(dense, source)
    detector.backbone = backbone(patch_size)
    detector.load_state_dict(released)
    check_equal(detector.backbone, source)


def test_safetensors_files_load(tmp_path):
    source = randomize(classifier()).state_dict()
    path = tmp_path / 'weights.safetensors'
    save_file({name: t.contiguous() for name, t in to_timm(source).items()}, path)
    target = classifier()
    load_checkpoint(target, str(path), strict=True)
    check_equal(target, source)


def test_own_files_round_trip_without_a_message(capfd):
    source, target = randomize(backbone()), backbone()
    assert str(target.load_state_dict(source.state_dict())) == '<All keys matched successfully>'
    assert capfd.readouterr().out == ''


def without(state, pattern):
    return {name: tensor for name, tensor in state.items() if not re.search(pattern, name)}


CLASSIFIER = to_released(randomize(classifier()).state_dict())
DENSE = to_released(randomize(backbone()).state_dict())
DENSE_8 = to_released(randomize(backbone(8)).state_dict())
THREE_LEVELS = dict(out_indices=(1, 2, 3), strides=(8, 16, 32))
# Arguments of a backbone, and weights.
FITTING = {
    'no counters of batches': ({}, without(DENSE, 'num_batches_tracked')),
    'layers after the last feature': (dict(out_indices=(0, 1), strides=(4, 8)), CLASSIFIER),
    'levels of other strides': (THREE_LEVELS, DENSE),
}


@pytest.mark.parametrize('kind', FITTING)
def test_weights_load_strictly_if_only_this_differs(kind):
    arguments, state = FITTING[kind]
    model = backbone(**arguments)
    model.load_state_dict(state)
    loaded = to_released(model.state_dict())
    # The rest has no weights in the file: a pyramid, or counters.
    assert all(re.match('fpn|.*num_batches_tracked', name) for name in loaded.keys() - state.keys())
    assert all(torch.equal(loaded[name], state[name]) for name in loaded.keys() & state.keys())


EXTRA = {f'blocks.{i}.extra': torch.ones(1) for i in range(4)}
# Arguments of a backbone, and weights, by the error.
REFUSED = {
    'patch_size 8 in the config, 16 in the file': (dict(patch_size=8), CLASSIFIER),
    'depth 6 in the config, 4 in the file': (
        dict(arch=dict(ARCH, depth=6), out_indices=(0, 1, 2, 5)), CLASSIFIER),
    'depth 3 in the config, 4 in the file': (
        dict(arch=dict(ARCH, depth=3), out_indices=(0, 1, 2), strides=(4, 8, 16)), CLASSIFIER),
    'embed_dims 64 in the config, 32 in the file': (
        dict(arch=dict(ARCH, embed_dims=64)), CLASSIFIER),
    'num_heads 2 in the config, 4 in the file': (dict(arch=dict(ARCH, num_heads=2)), CLASSIFIER),
    'in_channels 4 in the config, 3 in the file': (dict(in_channels=4), CLASSIFIER),
    'missing from the file: pyramid.levels.0.0.weight': (
        dict(patch_size=8), without(DENSE_8, r'fpn1\.0\.weight')),
    'missing from the file: pyramid.levels.1.0.weight': (
        THREE_LEVELS, without(DENSE, r'fpn2\.0\.weight')),
    'missing from the file: layers.0-3.ffn.fc1.weight (4)': (
        {}, without(CLASSIFIER, r'^blocks.*mlp\.fc1\.weight')),
    'unknown to the network: layers.0-3.extra (4)': ({}, CLASSIFIER | EXTRA),
    'in none of the formats known for XCiT': (
        {}, {'conv1.weight': torch.ones(1), 'layer1.0': torch.ones(1)}),
}  # fmt: skip


@pytest.mark.parametrize('message', REFUSED)
def test_weights_that_do_not_fit_are_refused_in_a_few_lines(message, tmp_path):
    """Also by mmengine, which by itself would only log what does not match."""
    arguments, state = REFUSED[message]
    torch.save({'model': state}, tmp_path / 'x.pth')
    model = backbone(
        **arguments, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'x.pth'))
    )
    for load in (lambda: model.load_state_dict(state), model.init_weights):
        with pytest.raises(WeightsError, match=re.escape(message)) as raised:
            load()
        assert 'formats' in message or 'format "released"' in str(raised.value)
        assert len(str(raised.value).splitlines()) < 10


def test_only_a_classifier_with_classes_needs_a_head():
    state = without(CLASSIFIER, 'head')
    classifier(num_classes=0).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'head\.weight'):
        classifier().load_state_dict(state)


ADAPTER = {'layers.0.xca.qkv.lora_A': torch.ones(2, 32), 'layers.1.norm1.weight': torch.ones(32)}
PARTIAL = {
    'an adapter': ADAPTER,
    'the same in a detector': {f'backbone.{name}': tensor for name, tensor in ADAPTER.items()},
    'another architecture': {'conv1.weight': torch.ones(1), 'layer1.0': torch.ones(1)},
    'a head alone': {'head.weight': torch.ones(5, 32)},
    'nothing': {},
}


@pytest.mark.parametrize('kind', PARTIAL)
def test_loading_without_strict_reports_what_torch_reports(kind):
    """torch's own report is that of a container whose modules have the same names."""
    state = PARTIAL[kind]
    model = backbone()
    whole: nn.Module = model
    if 'detector' in kind:
        whole = nn.Module()
        whole.backbone = model
    names = list(whole.state_dict())
    report = whole.load_state_dict(state, strict=False)
    assert report.unexpected_keys == [name for name in state if name not in names]
    # BatchNorm of torch fills in the number of its batches.
    expected = [n for n in names if n not in state and not n.endswith('num_batches_tracked')]
    assert report.missing_keys == expected
    assert bool((model.layers[1].norm1.weight == 1).all())
    with pytest.raises(RuntimeError):
        whole.load_state_dict(state)


def test_part_of_a_published_file_is_translated_without_strict():
    source = randomize(classifier())
    state = without(to_timm(source.state_dict()), r'blocks\.2\.mlp\.fc1\.weight')
    model = backbone()
    report = model.load_state_dict(state, strict=False)
    assert 'layers.2.ffn.fc1.weight' in report.missing_keys
    assert 'head.weight' in report.unexpected_keys
    assert torch.equal(model.layers[3].xca.qkv.weight, source.layers[3].xca.qkv.weight)


@pytest.mark.parametrize('kind', WRAPPED)
def test_convert_writes_our_names_and_refuses_to_overwrite(kind, tmp_path):
    source = randomize(classifier()).state_dict()
    path, out = tmp_path / 'in.pth', tmp_path / 'out.safetensors'
    torch.save(WRAPPED[kind](source), path)
    report = convert(str(path), out)
    assert f'"{format_of(kind)}"' in report and str(out) in report
    assert 'patch_size 16' in report and 'depth 4' in report
    written = load_file(out)
    assert written.keys() == source.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in source.items())
    with pytest.raises(UserError, match='--force'):
        convert(str(path), out)
    convert(str(path), out, overwrite=True)
    with pytest.raises(ValueError, match=r'\.safetensors'):
        convert(str(path), tmp_path / 'out.pth')
    assert list(tmp_path.glob('*.unfinished')) == []


ODD_ENTRIES = {
    'layers.x.norm1.weight': torch.ones(1),
    'layers': torch.ones(1),
    'layers.' + '9' * 5000 + '.norm1.weight': torch.ones(1),
    'patch_embed.layers.' + '9' * 20 + '.conv.weight': torch.ones(1),
    'layers.0.{0.__class__}': torch.ones(1),
    'patch_embed.layers.0.conv.weight': torch.ones(()),
    'pos_embed.projection.weight': torch.ones(()),
    'layers.0.xca.temperature': 3,
    'cls_layers.0.attn.q.weight': torch.ones(2, 3),
    'layers.1.norm1.weight': 'text',
    7: torch.ones(1),
}


@pytest.mark.parametrize('name', ODD_ENTRIES, ids=lambda name: str(name)[:30])
def test_odd_entries_are_left_out_or_refused(name, tmp_path):
    path = tmp_path / 'x.pth'
    state = {**classifier().state_dict(), name: ODD_ENTRIES[name]}
    torch.save({'model': state}, path)
    with contextlib.suppress(WeightsError):
        load_checkpoint(backbone(), str(path))
    assert '"own"' in convert(str(path), tmp_path / 'out.safetensors')
