"""Weights of every published format load as they are, through mmengine's own reader."""

import contextlib
import re

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint
from safetensors.torch import load_file, save_file
from torch import nn

from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.weights import WeightsError, convert, published, recognize, resolve_short_name

ARCH = dict(embed_dims=32, depth=4, num_heads=4)
OUT = (0, 1, 2, 3)


def randomized(model):
    for tensor in [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]:
        torch.nn.init.uniform_(tensor, 0.1, 1.0)
    return model


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
    return XCiTClassifier(ARCH, num_classes=10, **kwargs)


def backbone(patch_size=16, **kwargs):
    return XCiT(ARCH, patch_size, out_indices=OUT, **kwargs)


@pytest.mark.parametrize('kind', WRAPPED)
def test_classifier_files_load_into_classifier_and_backbone(kind, tmp_path, capfd):
    source = randomized(classifier())
    file = WRAPPED[kind](source.state_dict())
    expected = source.state_dict()
    target = classifier()
    target.load_state_dict(file)
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    dense = backbone()
    pyramid = {k: v.clone() for k, v in dense.state_dict().items() if k.startswith('pyramid.')}
    dense.load_state_dict(file)
    for name, tensor in dense.state_dict().items():
        assert torch.equal(tensor, pyramid[name] if name in pyramid else expected[name]), name
    # The same from a file, through mmengine, as `init_cfg` and `load_from` do it.
    MMLogger.get_instance(str(tmp_path))  # a logger that writes to this test's output
    path = tmp_path / 'weights.pth'
    torch.save(file, path)
    loaded = MODELS.build(
        dict(
            type='XCiT', arch=ARCH, out_indices=OUT,
            init_cfg=dict(type='Pretrained', checkpoint=str(path)),
        )
    )  # fmt: skip
    loaded.init_weights()
    for name, tensor in loaded.state_dict().items():
        if name not in pyramid:
            assert torch.equal(tensor, expected[name]), name
    log = capfd.readouterr()
    text = log.out + log.err
    if kind != 'own':
        assert f'format "{recognize_name(kind)}"' in text
        assert 'not used: cls_layers, cls_token, head, norm' in text
        assert 'not in the file: pyramid' in text


def recognize_name(kind):
    return 'released' if kind.startswith('dino') else kind


@pytest.mark.parametrize('patch_size', [8, 16])
def test_released_dense_files_load_into_backbone_and_detector(patch_size, tmp_path):
    source = randomized(backbone(patch_size))
    path = tmp_path / 'mask_rcnn.pth'
    released = {f'backbone.{k}': v for k, v in to_released(source.state_dict()).items()}
    torch.save({'meta': {}, 'state_dict': {**released, 'neck.x': torch.ones(1)}}, path)
    dense = backbone(patch_size)
    load_checkpoint(dense, str(path), strict=True)
    for name, tensor in dense.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name]), name

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = backbone(patch_size)

    detector = Detector()
    detector.load_state_dict(released)
    assert torch.equal(
        detector.backbone.patch_embed.layers[0].conv.weight,
        source.patch_embed.layers[0].conv.weight,
    )


def test_a_pyramid_without_counters_is_kept():
    source = randomized(backbone(16))
    state = to_released(source.state_dict())
    counters = [n for n in state if n.startswith('fpn') and n.endswith('num_batches_tracked')]
    for name in counters:
        del state[name]
    target = backbone(16)
    target.load_state_dict(state)
    for name, tensor in target.state_dict().items():
        if not name.endswith('num_batches_tracked'):
            assert torch.equal(tensor, source.state_dict()[name]), name
    assert counters


def test_a_pyramid_with_weights_missing_is_refused():
    state = to_released(randomized(backbone(8)).state_dict())
    del state['fpn1.0.weight']
    with pytest.raises(WeightsError, match=r'missing from the file: pyramid\.levels\.0\.0\.weight'):
        backbone(8).load_state_dict(state)


def test_safetensors_files_load(tmp_path):
    source = randomized(classifier())
    path = tmp_path / 'weights.safetensors'
    save_file({k: v.contiguous() for k, v in to_timm(source.state_dict()).items()}, path)
    target = classifier()
    load_checkpoint(target, str(path), strict=True)
    assert torch.equal(target.head.weight, source.head.weight)


def test_dino_weights_without_head_load_into_a_headless_classifier():
    source = randomized(classifier())
    state = {k: v for k, v in to_released(source.state_dict()).items() if 'head' not in k}
    XCiTClassifier(ARCH, num_classes=0).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'head\.weight'):
        classifier().load_state_dict(state)


def test_own_files_round_trip_without_a_message(capfd):
    source = randomized(backbone())
    target = backbone()
    assert str(target.load_state_dict(source.state_dict())) == '<All keys matched successfully>'
    assert capfd.readouterr().out == ''


WRONG = {
    'patch_size 8 in the config, 16 in the file': dict(patch_size=8),
    'depth 6 in the config, 4 in the file': dict(
        arch=dict(ARCH, depth=6), out_indices=(0, 1, 2, 5)
    ),
    'depth 3 in the config, 4 in the file': dict(
        arch=dict(ARCH, depth=3), out_indices=(0, 1, 2), strides=(4, 8, 16)
    ),
    'embed_dims 64 in the config, 32 in the file': dict(arch=dict(ARCH, embed_dims=64)),
    'num_heads 2 in the config, 4 in the file': dict(arch=dict(ARCH, num_heads=2)),
    'in_channels 4 in the config, 3 in the file': dict(in_channels=4),
}


@pytest.mark.parametrize('message', WRONG)
def test_weights_of_another_network_are_refused_with_both_numbers(message, tmp_path):
    path = tmp_path / 'x.pth'
    torch.save({'model': to_released(classifier().state_dict())}, path)
    init_cfg = dict(type='Pretrained', checkpoint=str(path))
    model = XCiT(**{'arch': ARCH, 'out_indices': OUT, 'init_cfg': init_cfg, **WRONG[message]})
    with pytest.raises(WeightsError, match=message) as raised:
        model.init_weights()
    assert 'format "released"' in str(raised.value)
    assert len(str(raised.value).splitlines()) < 10


def test_missing_and_unknown_names_are_grouped():
    state = to_timm(classifier().state_dict())
    for i in range(4):
        del state[f'blocks.{i}.mlp.fc1.weight']
        state[f'blocks.{i}.extra'] = torch.ones(1)
    with pytest.raises(WeightsError) as raised:
        backbone().load_state_dict(state)
    assert 'missing from the file: layers.0-3.ffn.fc1.weight (4)' in str(raised.value)
    assert 'unknown to the network: layers.0-3.extra (4)' in str(raised.value)


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
    source = randomized(classifier())
    state = to_timm(source.state_dict())
    del state['blocks.2.mlp.fc1.weight']
    model = backbone()
    report = model.load_state_dict(state, strict=False)
    assert 'layers.2.ffn.fc1.weight' in report.missing_keys
    assert 'head.weight' in report.unexpected_keys
    assert torch.equal(model.layers[3].xca.qkv.weight, source.layers[3].xca.qkv.weight)


def test_another_architectures_weights_are_refused():
    with pytest.raises(WeightsError, match='none of the formats'):
        backbone().load_state_dict({'conv1.weight': torch.ones(1), 'layer1.0': torch.ones(1)})


def test_fewer_out_indices_take_the_first_layers_of_a_whole_file():
    source = randomized(classifier())
    model = XCiT(ARCH, out_indices=(0, 1), strides=(4, 8))
    model.load_state_dict(to_timm(source.state_dict()))
    assert len(model.layers) == 2


def test_levels_of_a_detector_go_to_those_of_the_same_stride():
    state = to_released(randomized(backbone()).state_dict())
    model = XCiT(ARCH, out_indices=(1, 2, 3), strides=(8, 16, 32))
    model.load_state_dict(state)
    assert torch.equal(model.pyramid.levels[0][0].weight, state['fpn2.0.weight'])
    del state['fpn2.0.weight']
    with pytest.raises(WeightsError, match=r'missing from the file: pyramid\.levels\.1\.0\.weight'):
        model.load_state_dict(state)


def test_all_70_published_files_have_a_short_name():
    table = published()
    assert len(table) == len(set(table.values())) == 70
    assert resolve_short_name('xcit://s12/8/384_dist').endswith('/xcit_small_12_p8_384_dist.pth')
    assert resolve_short_name('xcit://coco/s12/8').endswith('/coco/maskrcnn_xcit_small_12_p8.pth')
    assert resolve_short_name('xcit://dino/m24/16').endswith('/xcit_medium_24_cp16_dino.pth')
    assert resolve_short_name('xcit://ade20k/upernet/t12/8').endswith('upernet_xcit_tiny_12_p8.pth')
    with pytest.raises(ValueError, match='xcit://s12/8/224_dist'):
        resolve_short_name('xcit://s12/8/512')


@pytest.mark.parametrize('kind', WRAPPED)
def test_convert_writes_our_names_and_refuses_to_overwrite(kind, tmp_path):
    source = randomized(classifier())
    path, out = tmp_path / 'in.pth', tmp_path / 'out.safetensors'
    torch.save(WRAPPED[kind](source.state_dict()), path)
    report = convert(str(path), out)
    assert f'"{recognize_name(kind)}"' in report and str(out) in report
    assert 'patch_size 16' in report and 'depth 4' in report
    written = load_file(out)
    assert written.keys() == source.state_dict().keys()
    assert all(torch.equal(written[k], v) for k, v in source.state_dict().items())
    with pytest.raises(FileExistsError, match='--force'):
        convert(str(path), out)
    convert(str(path), out, overwrite=True)
    with pytest.raises(ValueError, match=r'\.safetensors'):
        convert(str(path), tmp_path / 'out.pth')
    assert list(tmp_path.glob('*.unfinished')) == []


def test_recognize_finds_nothing_in_an_empty_state_dict():
    assert recognize({}) is None
    assert Config(dict(a=1)).a == 1


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
