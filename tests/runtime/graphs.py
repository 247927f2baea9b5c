"""Small ONNX files with the inputs, outputs and metadata of exported models."""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from xcit_mm_runtime.metadata import KEY, Metadata

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
TYPES = {'float32': TensorProto.FLOAT, 'uint8': TensorProto.UINT8}


def metadata(task, classes, **changes):
    """What the export writes about a model."""
    metadata = Metadata(
        task=task, classes=classes, category_ids=None, channels=3, patch_size=8,
        palette=[[i, 200 - i, 7 * i] for i in range(len(classes))],
        input={'dtype': 'float32', 'channel_order': 'rgb', 'mean': MEAN, 'std': STD},
        resize={'scale': [160, 96], 'keep_ratio': True},
    )  # fmt: skip
    return metadata.to_dict() | changes


def write(path, nodes, outputs, constants, info):
    """Write a graph; ``info`` None for no metadata."""
    kind = TYPES[info['input']['dtype']] if info else TensorProto.FLOAT
    image = helper.make_tensor_value_info('image', kind, ['N', 3, 'H', 'W'])
    graph = helper.make_graph(
        nodes, 'tiny', [image],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=10)
    if info is not None:
        helper.set_model_props(model, {KEY: json.dumps(info)})
    onnx.save(model, path)
    return path


def segmentor(path, weights, info):
    """Logits from a convolution of patches of 4x4, at the size of the input."""
    nodes = [
        helper.make_node('Cast', ['image'], ['float'], to=TensorProto.FLOAT),
        helper.make_node('AveragePool', ['float'], ['pooled'], kernel_shape=[4, 4], strides=[1, 1]),
        helper.make_node('Conv', ['pooled', 'weights'], ['small']),
        helper.make_node('Shape', ['image'], ['size'], start=2),
        helper.make_node('Shape', ['small'], ['begin'], end=2),
        helper.make_node('Concat', ['begin', 'size'], ['sizes'], axis=0),
        helper.make_node('Resize', ['small', '', '', 'sizes'], ['logits'], mode='linear'),
    ]
    return write(path, nodes, {'logits': TensorProto.FLOAT}, {'weights': weights}, info)


def detector(path, found, info):
    """The given boxes, scores, labels and masks, whatever the image is."""
    nodes = [
        helper.make_node('Shape', ['image'], ['batch'], end=1),
        helper.make_node('Cast', ['batch'], ['number'], to=TensorProto.FLOAT),
        helper.make_node('ReduceMax', ['number'], ['one'], keepdims=0),  # batches of one image
    ]
    for name in found:
        kind = TensorProto.INT64 if name == 'labels' else TensorProto.FLOAT
        nodes += [
            helper.make_node('Cast', ['one'], [f'{name}_one'], to=kind),
            helper.make_node('Mul', [f'{name}_given', f'{name}_one'], [name]),
        ]
    kinds = {n: TensorProto.INT64 if n == 'labels' else TensorProto.FLOAT for n in found}
    return write(path, nodes, kinds, {f'{n}_given': v[None] for n, v in found.items()}, info)


def write_model(path, task, size, **changes):
    """A detector that finds six things in an image of the given size, or a segmentor by color."""
    info = metadata(task, ['disc', 'bar', 'star'], **changes)
    if task == 'detection':
        return detector(path, random_detections(6, size), info)
    return segmentor(path, np.eye(3, dtype=np.float32)[:, :, None, None], info)


def random_detections(count, size, seed=0):
    """Boxes in an image of the given height and width, with masks; some cross its edges."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-0.1, 0.9, (count, 2)) * size[::-1]
    sides = rng.uniform(0.02, 0.5, (count, 2)) * size[::-1]
    return {
        'boxes': np.concatenate([corners, corners + sides], 1).astype(np.float32),
        'scores': np.sort(rng.uniform(0.1, 1, count))[::-1].astype(np.float32),
        'labels': rng.integers(0, 3, count),
        'masks': rng.uniform(0, 1, (count, 28, 28)).astype(np.float32),
    }
