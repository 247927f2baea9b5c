"""The command, the files that it writes, and what it refuses."""

import contextlib
import hashlib
import json
import re
import subprocess
import sys

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from mmengine.config import Config

import xcit_mm_runtime
from xcit_mm.deploy import check
from xcit_mm.deploy import export as deploy
from xcit_mm.deploy.export import report_path
from xcit_mm.deploy.metadata import Options, describe
from xcit_mm.deploy.precision import split_linear, to_half
from xcit_mm.deploy.support import check_supported
from xcit_mm.engine.testing import set_windows
from xcit_mm.errors import UserError
from xcit_mm.inference import load_predictor
from xcit_mm.inference.predictors import CheckpointPredictor
from xcit_mm_runtime import ImageError

from ..tiny import HEADS, ROOT, WIDTH, build, call, recipe, write_model

LAYERS = 4


def run_export(folder, head, patch_size, *options, name='model.onnx'):
    config, checkpoint, model = write_model(folder, head, patch_size)
    out = folder / name
    assert call('export', config, checkpoint, '--out', out, *options) == 0
    return out, model


@pytest.fixture(scope='module')
def segmentor(tmp_path_factory):
    torch.manual_seed(0)
    return run_export(tmp_path_factory.mktemp('seg'), 'sem_fpn', 16, '--uint8')


# Its export takes 40 seconds, so the tests that use it are long; test_graph.py has the graph.
@pytest.fixture(scope='module')
def detector(tmp_path_factory):
    torch.manual_seed(0)
    return run_export(tmp_path_factory.mktemp('det'), 'mask_rcnn', 16)


@pytest.mark.long
def test_a_detector_agrees_with_mmdet_and_describes_itself(detector):
    path, _ = detector
    report = json.loads((path.parent / 'model.onnx.report.json').read_text())
    sizes = [case['size'] for case in report['cases']]
    assert report['passed'] and len(sizes) == 3
    assert any(batch == 2 for batch, *_ in sizes)
    assert any(height % 32 and width % 32 for _, height, width in sizes)
    assert all(case['detections'] > 5 for case in report['cases'])
    session = onnxruntime.InferenceSession(path)
    (image,) = session.get_inputs()
    assert [isinstance(size, str) for size in image.shape] == [True, False, True, True]
    names = [output.name for output in session.get_outputs()]
    assert names == ['boxes', 'scores', 'labels', 'masks']
    metadata = xcit_mm_runtime.load(path).metadata
    assert metadata.to_dict() == report['metadata'] and metadata.task == 'detection'
    assert metadata.input['channel_order'] == 'rgb' and metadata.input['dtype'] == 'float32'
    assert metadata.input['mean'] == pytest.approx([123.675, 116.28, 103.53])
    assert len(metadata.classes) == len(metadata.palette) == 80
    assert metadata.resize == {'scale': [160, 96], 'keep_ratio': True}
    assert (metadata.mask_thr, metadata.padding_divisor) == (0.5, 32)
    assert metadata.strides == [4, 8, 16, 32] and metadata.versions['opset'] == 18
    digest = hashlib.sha256((path.parent / 'weights.pth').read_bytes()).hexdigest()
    assert metadata.checkpoint == {'name': 'weights.pth', 'sha256': digest}


@pytest.mark.long
def test_a_detector_needs_only_operators_of_onnx(detector):
    nodes = onnx.load(detector[0]).graph.node
    assert {node.domain for node in nodes} == {''}
    kinds = [node.op_type for node in nodes]
    assert {'NonMaxSuppression', 'RoiAlign'} <= set(kinds) and 'Loop' not in kinds


@pytest.mark.long
def test_a_detector_that_finds_nothing(detector):
    """The heads then run on no boxes at all."""
    model = onnx.load(detector[0])
    last = [node for node in model.graph.node if node.op_type == 'NonMaxSuppression'][-1]
    (threshold,) = [i for i in model.graph.initializer if i.name == last.input[4]]
    threshold.CopyFrom(onnx.numpy_helper.from_array(np.float32([2.0]), threshold.name))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    boxes, _, labels, masks = session.run(None, {'image': np.zeros((2, 3, 64, 96), np.float32)})
    assert boxes.shape == (2, 0, 4) and labels.shape == (2, 0) and masks.shape == (2, 0, 28, 28)


def test_a_segmentor_takes_bytes_of_any_size(segmentor, monkeypatch):
    path, model = segmentor
    exported = xcit_mm_runtime.load(path)
    expected = {'dtype': 'uint8', 'channel_order': 'rgb', 'mean': None, 'std': None}
    assert exported.metadata.input == expected
    assert exported.classes[0] == 'wall' and len(exported.palette) == 150
    monkeypatch.setattr(check, 'SIZES', ((1, 32, 57), (3, 111, 64)))
    report = check.compare(model, exported)
    assert report.passed, report


@pytest.mark.parametrize('kind', [pytest.param('detector', marks=pytest.mark.long), 'segmentor'])
def test_a_file_predicts_what_its_checkpoint_predicts(kind, request):
    path, _ = request.getfixturevalue(kind)
    (config,), checkpoint = path.parent.glob('*_16.py'), str(path.parent / 'weights.pth')
    predictor = load_predictor(Config.fromfile(config), checkpoint, 'cpu')
    exported = xcit_mm_runtime.load(path)
    blocks = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    assert list(exported.classes) == list(predictor.classes)
    for size in ((270, 190), (96, 160)):
        image = cv2.resize(blocks, size)
        ours, theirs = exported(image), predictor(image)
        if kind == 'segmentor':
            assert (ours.labels == theirs.labels).mean() > 0.99
            continue
        pairs = check.match(vars(theirs), vars(ours), max(size), check.TOLERANCES['float32'])
        assert len(pairs) == len(ours.boxes) == len(theirs.boxes) > 5
        # Rounding moves edges by a pixel here and there.
        assert all((theirs.masks[i] != ours.masks[j]).mean() < 0.01 for i, j in pairs)
    # 8x160 after resizing: with a detector, padding makes it large enough.
    thin = blocks[:1].repeat(20, 0).repeat(40, 1)[:, :400]
    for each in (exported, predictor):
        refused = pytest.raises(ImageError, match='at least one patch')
        with refused if kind == 'segmentor' else contextlib.nullcontext():
            each(thin)


@pytest.mark.long
def test_a_file_cuts_the_windows_of_its_checkpoint(detector):
    path, plain = detector
    cfg = recipe('mask_rcnn', 16)
    set_windows(cfg, 64, 24)
    model = build(cfg)
    model.load_state_dict(plain.state_dict())
    check_supported(model, Options())
    assert check.compare(model, xcit_mm_runtime.load(path)).passed and model.windows['size'] == 64
    exported, predictor = xcit_mm_runtime.load(path), CheckpointPredictor(cfg, model)
    assert exported.metadata.windows is None
    assert exported.metadata.to_dict()['format'] == 1
    exported.metadata.windows = describe(cfg, model, Options(), '', 'random').windows
    assert exported.metadata.to_dict()['format'] == 2  # older versions refuse it
    image = cv2.resize(np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8), (270, 190))
    ours, theirs = exported(image), predictor(image)
    pairs = check.match(vars(theirs), vars(ours), 270, check.TOLERANCES['float32'])
    assert len(pairs) == len(ours.boxes) == len(theirs.boxes) > 5
    assert all((theirs.masks[i] != ours.masks[j]).mean() < 0.01 for i, j in pairs)
    exported.metadata.windows = None
    assert (
        len(exported(image).boxes) != len(ours.boxes) or (exported(image).boxes != ours.boxes).any()
    )


def test_attention_costs_two_products_of_all_tokens(segmentor):
    """By the shapes of all products in the graph, for which it is run."""
    model = onnx.load(segmentor[0])
    products = [node for node in model.graph.node if node.op_type in ('MatMul', 'Gemm')]
    initializers = {i.name: i.dims for i in model.graph.initializer}
    inputs = {name for node in products for name in node.input[:2] if name not in initializers}
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(inputs - known))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    image = np.zeros((1, 3, 512, 1024), np.uint8)
    shapes = {n: v.shape for n, v in zip(names, session.run(None, {'image': image}), strict=True)}
    shapes |= initializers
    count = 0
    for node in products:
        left, right = (shapes[name] for name in node.input[:2])
        transposed = any(a.name == 'transB' and a.i for a in node.attribute)
        count += int(np.prod(left)) * (right[-2] if transposed else right[-1])
    tokens = 32 * 64
    feed_forward, attention = 8 * tokens * WIDTH**2, 2 * tokens * WIDTH**2
    rest = count / LAYERS - feed_forward - attention
    # q, k: 2 d³; A: d³/h twice; values and projection: d³. The column of ones adds to these.
    assert 3 * WIDTH**3 < rest < 7 * WIDTH**3 < tokens * WIDTH**2


def export_again(path, monkeypatch, *options):
    """Run the command for an exported model again, but copy the graph: tracing takes long."""
    content, (config,) = path.read_bytes(), path.parent.glob('*_16.py')
    out = path.with_stem('-'.join(options[:2]).strip('-').replace('/', '_'))
    monkeypatch.setattr(deploy, 'write_onnx', lambda g, out, *_: out.write_bytes(content))
    words = [config, path.parent / 'weights.pth', '--out', out, '--force', *options]
    assert call('export', *words) == 0
    return out, json.loads(report_path(out).read_text())


# Not a detector in int8: how rounding reorders the scores of a random one depends on the CPU.
@pytest.mark.parametrize(
    ('kind', 'option', 'precision', 'share'),
    [
        ('segmentor', '--fp16', 'float16', 0.7),
        ('segmentor', '--int8', 'int8', 1),
        pytest.param('detector', '--fp16', 'float16', 0.7, marks=pytest.mark.long),
    ],
)
def test_smaller_files(kind, option, precision, share, request, monkeypatch, small_shapes, capsys):
    path, _ = request.getfixturevalue(kind)
    options = (option, *(['--uint8'] if kind == 'segmentor' else []))
    capsys.readouterr()
    out, report = export_again(path, monkeypatch, *options)
    printed = capsys.readouterr().out
    steps = re.findall(r'^\[ *\d+ s\] (\w+) .*\.\.\.$', printed, re.MULTILINE)
    assert steps == ['building', 'loading', 'folding', 'tracing', 'converting', 'comparing']
    assert f': {out}, ' in printed and printed.endswith(f'report: {report_path(out)}\n')
    assert report['passed'] and report['metadata']['precision'] == precision
    assert out.stat().st_size < share * path.stat().st_size
    image = str(next((small_shapes / 'coco' / 'val2017').iterdir()))
    ours, theirs = (xcit_mm_runtime.load(file)(image) for file in (out, path))
    if kind == 'segmentor':
        assert (ours.labels == theirs.labels).mean() > 0.95
    else:
        assert np.abs(ours.scores - theirs.scores).max() < 0.05


def test_calibration_brings_convolutions_to_int8(segmentor, monkeypatch, small_shapes):
    path, _ = segmentor
    images = str(small_shapes / 'coco' / 'val2017')
    out, report = export_again(path, monkeypatch, '--int8', '--uint8', '--calibration', images)
    assert report['passed'] and report['metadata']['precision'] == 'int8'
    model = onnx.load(out)
    quantized = {n for node in model.graph.node if 'DequantizeLinear' in node.op_type
                 for n in node.output}  # fmt: skip
    convolutions = [node for node in model.graph.node if node.op_type == 'Conv']
    layers = {node.name.split('/')[0] for node in convolutions if node.input[1] in quantized}
    assert 'neck.fpn_convs.0.conv' in layers and 'head.conv_seg' not in layers


def test_attention_stays_in_float32(segmentor):
    """The covariance sums over all tokens: float16 overflows, and loses its small differences."""
    model = onnx.load(segmentor[0])
    attention = {node.name: list(node.output) for node in model.graph.node
                 if node.name.startswith('backbone/')}  # fmt: skip
    kinds = {name.split('node_')[1].split('_')[0] for name in attention}
    assert {'matmul', 'softmax', 'linear'} <= kinds
    to_half(model)
    after = {node.name: node for node in model.graph.node}
    assert any(name.endswith('_half') for node in after.values() for name in node.output)
    for name, outputs in attention.items():
        assert list(after[name].output) == outputs
        assert not any(value.endswith('_half') for value in after[name].input)


@pytest.mark.parametrize('option', ['--uint8', '--fp16', '--int8'])
def test_a_file_that_disagrees_is_not_kept(option, segmentor, tmp_path, monkeypatch, capsys):
    """The file of another model takes the place of the one that is written."""
    path, _ = segmentor
    torch.manual_seed(1)
    config, checkpoint, _ = write_model(tmp_path, 'sem_fpn', 16)
    content = path.read_bytes()
    monkeypatch.setattr(deploy, 'write_onnx', lambda g, out, *_: out.write_bytes(content))
    before = sorted(tmp_path.iterdir())
    out = str(tmp_path / 'model.onnx')
    assert call('export', config, checkpoint, '--out', out, '--uint8', option) == 2
    error = capsys.readouterr().err
    assert 'does not agree' in error and 'DIFFERS' in error and 'allowed' in error
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.long
def test_a_torch_program_runs_without_this_package(tmp_path):
    arguments = ('sem_fpn', 16, '--backbone', '--format', 'torch')
    out, _ = run_export(tmp_path, *arguments, name='model.pt2')
    code = (
        'import sys, torch\n'
        'for name in ("xcit_mm", "mmengine", "mmcv", "mmdet", "mmseg"): sys.modules[name] = None\n'
        f'levels = torch.export.load({str(out)!r}).module()(torch.rand(3, 3, 64, 101))\n'
        'print([tuple(level.shape) for level in levels])\n'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    maps = [(16, 28), (8, 14), (4, 7), (2, 3)]
    assert result.stdout.strip() == str([(3, WIDTH, *size) for size in maps])


def one_stage(cfg):
    parts = dict(backbone=cfg.model.backbone, neck=cfg.model.neck)
    head = dict(type='RetinaHead', num_classes=3, in_channels=WIDTH, feat_channels=WIDTH)
    cfg.model = dict(type='RetinaNet', bbox_head=head, **parts)


NARROW = dict(in_channels=WIDTH, channels=WIDTH, in_index=3, num_classes=3)
SLIDE = dict(mode='slide', crop_size=(64, 64), stride=(32, 32))


@pytest.mark.parametrize(
    ('head', 'change', 'words'),
    [
        ('mask_rcnn', one_stage, 'RetinaNet, expected FasterRCNN'),
        ('mask_rcnn', {'test_cfg.rcnn.nms.type': 'soft_nms'}, 'nms.type=nms'),
        ('mask_rcnn', {'test_cfg.rcnn.nms.class_agnostic': True}, 'class_agnostic of'),
        ('mask_rcnn', {'test_cfg.rcnn.max_per_img': -1}, 'max_per_img=-1'),
        ('sem_fpn', {'test_cfg': SLIDE}, 'mode=whole'),
        ('sem_fpn', {'data_preprocessor.test_cfg': dict(size=(64, 64))}, 'size_divisor'),
        ('sem_fpn', {'decode_head': dict(_delete_=True, type='FCNHead', **NARROW)},
         'FCNHead, expected FPNHead or UPerHead'),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused(head, change, words):
    cfg = recipe(head, 16)
    if callable(change):
        change(cfg)
    else:
        cfg.merge_from_dict({f'model.{key}': value for key, value in change.items()})
    model = build(cfg)
    with pytest.raises(UserError, match=words):
        check_supported(model, Options())
    if words != 'size_divisor':
        check_supported(model, Options(backbone=True))


def test_a_detector_is_not_exported_as_a_torch_program():
    with pytest.raises(UserError, match='Use --format onnx'):
        check_supported(build(recipe('mask_rcnn', 16)), Options(format='torch'))


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        (['--out', 'there.onnx'], 'already exists'),
        (['--labels', '--backbone'], '--labels is for whole segmentors'),
        (['--images', 'weights.pth'], 'is not an image'),
    ],
)
def test_options_that_make_no_sense(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path, 'sem_fpn', 16)
    (tmp_path / 'there.onnx').write_text('')
    assert call('export', 'sem_fpn_16.py', 'weights.pth', *options) == 2
    assert words in capsys.readouterr().err


def test_missing_packages_are_named(tmp_path, monkeypatch, capsys):
    from xcit_mm.deploy import support

    find = support.importlib.util.find_spec
    monkeypatch.setattr(
        support.importlib.util, 'find_spec', lambda n: None if n == 'onnxscript' else find(n)
    )
    write_model(tmp_path, 'sem_fpn', 16)
    arguments = [str(tmp_path / 'sem_fpn_16.py'), str(tmp_path / 'weights.pth')]
    assert call('export', *arguments) == 2
    assert 'pip install onnxscript' in capsys.readouterr().err


# Detectors and segmentors have both patch sizes.
@pytest.mark.long
@pytest.mark.parametrize('head, patch_size', [
    ('faster_rcnn', 16), ('mask_rcnn', 8), ('cascade_mask_rcnn', 16), ('sem_fpn', 16),
    ('upernet', 8),
])  # fmt: skip
def test_every_head_at_its_full_size(head, patch_size, tmp_path):
    name = HEADS[head].format(patch_size).replace('s12', 'n12')
    cfg = Config.fromfile(ROOT / 'configs' / name)
    cfg.model.backbone.init_cfg = None
    torch.manual_seed(0)
    out, details = tmp_path / 'model.onnx', dict(name=head, checkpoint='random')
    assert deploy.export(cfg, build(cfg), out, Options(), **details).passed


def graph_of(nodes, inputs, outputs, weights, value_info=()):
    """A graph of nodes of float32; inputs and outputs have shapes."""
    nodes = [onnx.helper.make_node(*node[:3], name=node[3], **node[4]) for node in nodes]
    values = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
         for name, shape in group.items()] for group in (inputs, outputs, dict(value_info))
    ]  # fmt: skip
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = onnx.helper.make_graph(nodes, 'graph', *values[:2], tensors, value_info=values[2])
    opset = onnx.helper.make_opsetid('', 18)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)


def run_graph(model, x):
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {'x': x})
    return found


def test_float16_keeps_a_shape_that_only_float16_reads():
    weight = np.random.default_rng(0).random((4, 6), np.float32)
    nodes = [
        ('MatMul', ['x', 'weight'], ['y'], 'layer/MatMul', {}),
        ('Reshape', ['y', 'shape'], ['z'], 'layer/Reshape', {}),
    ]
    weights = {'weight': weight, 'shape': np.array([3, 4])}
    model = graph_of(nodes, {'x': [2, 4]}, {'z': [3, 4]}, weights, {'y': [2, 6]})
    to_half(model)
    x = np.ones((2, 4), np.float32)
    # Four products of numbers below 1, each rounded to 11 bits.
    assert np.allclose(run_graph(model, x), (x @ weight).reshape(3, 4), atol=8 * 2**-11)


def test_float16_is_not_used_for_weights_that_it_cannot_hold():
    """With the LayerScale that the deep networks start with folded in, it would round most to 0."""
    x, weight, scale = np.random.default_rng(0).normal(size=(3, 16, 16)).astype(np.float32)
    weights = {
        'large': 0.02 * weight,
        'small': 1e-5 * 0.02 * weight,
        'shifted': 1e-5 * 0.02 * scale,  # not a product of its own, so it is only stored in float16
    }
    nodes = [
        ('MatMul', ['x', 'large'], ['y'], 'ffn.fc1/MatMul', {}),
        ('MatMul', ['y', 'small'], ['z'], 'ffn.fc2/MatMul', {}),
        ('Mul', ['x', 'shifted'], ['u'], 'backbone/Mul', {}),
        ('Add', ['z', 'u'], ['out'], 'backbone/Add', {}),
    ]
    shape = [16, 16]
    model = graph_of(nodes, {'x': shape}, {'out': shape}, weights, dict.fromkeys('yzu', shape))
    expected = run_graph(model, x)
    to_half(model)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert types['large_half'] == onnx.TensorProto.FLOAT16
    # Tokens, weights and hidden numbers are each rounded once to 11 bits.
    error = np.linalg.norm(run_graph(model, x) - expected) / np.linalg.norm(expected)
    assert error < 3 * 2**-11


@pytest.mark.parametrize('bias', [[], ['bias']])
def test_linear_layers_are_split_with_and_without_a_bias(bias):
    """The exporter drops biases of zero, as those of random weights are."""
    weight = np.random.default_rng(0).random((6, 4), np.float32)
    nodes = [('Gemm', ['x', 'weight', *bias], ['y'], 'ffn/Gemm', {'transB': 1})]
    weights = {'weight': weight, 'bias': np.arange(6, dtype=np.float32)}
    model = graph_of(nodes, {'x': [2, 4]}, {'y': [2, 6]}, weights)
    split_linear(model.graph)
    assert [node.op_type for node in model.graph.node] == ['MatMul', *(['Add'] if bias else [])]
    x = np.ones((2, 4), np.float32)
    # Sums of four products of numbers below 1.
    expected = x @ weight.T + (np.arange(6) if bias else 0)
    assert np.allclose(run_graph(model, x), expected, atol=8 * 2**-22)


def test_a_torch_that_cannot_trace_is_named(monkeypatch):
    def fail():
        with deploy.explaining_old_torch():
            raise ValueError('a guard')

    with pytest.raises(ValueError, match='a guard'):
        fail()
    monkeypatch.setattr(deploy, 'TESTED_TORCH', '99')
    with pytest.raises(UserError, match='tested with torch'):
        fail()
