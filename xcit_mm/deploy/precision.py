"""Makes an exported float32 file smaller: weights and products in float16 or int8.

Both leave alone what few bits would spoil: attention, whose covariance is a sum over all tokens,
which float16 cannot hold; positions, normalization, resizing, and the last layers of the heads with
all that computes with boxes. Float16 also leaves alone weights that it cannot hold, such as those
with a small LayerScale folded in.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xcit_mm_runtime.metadata import KEY, Metadata
from xcit_mm_runtime.preprocess import resize_image, to_planes

# Names of the modules whose products stay in float32. Attention is computed in the backbone itself,
# by no module of its own.
FLOAT32_LAYERS = {
    'backbone', 'projection', 'conv_seg', 'rpn_cls', 'rpn_reg', 'fc_cls', 'fc_reg', 'conv_logits',
}  # fmt: skip
PRODUCTS = ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')
# What is computed in float16 if all that it takes is in float16.
FOLLOWERS = {
    'Add', 'Concat', 'Div', 'Erf', 'Gelu', 'MaxPool', 'Mul', 'Relu', 'Reshape', 'Transpose',
}  # fmt: skip
# Weights with fewer numbers are not worth an operator that converts them.
MIN_WEIGHT = 256
# How far float16 may be from a weight, relative to its norm. In its range, it is off by 2^-11 at
# most; below, it rounds to zero.
MAX_ERROR = 2**-10


def lower(path: Path, metadata: Metadata, images: Iterable[np.ndarray] | None = None) -> None:
    """Rewrite a float32 file in the precision that its new metadata state.

    Args:
        path (Path): An ONNX file whose nodes are named ``MODULE/...``.
        metadata (Metadata): Its ``precision`` is ``float16`` or ``int8``.
        images (Iterable[np.ndarray], optional): For int8: images in BGR, from which it learns the
            ranges of values, so that convolutions can be in int8 as well. Defaults to None: linear
            layers alone are, and the ranges are those of each image.
    """
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, {KEY: json.dumps(metadata.to_dict())})
    if metadata.precision == 'float16':
        to_half(model)
        onnx.save(model, path)
    elif images is None:
        to_int8(model, path)
    else:
        resized = (resize_image(image, metadata.resize)[None] for image in images)
        to_int8(model, path, (to_planes(image, **metadata.input) for image in resized))


def products(graph: Any) -> Iterator[Any]:
    """Yield the products with weights that fewer bits do not spoil."""
    weights = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        layer = node.name.rpartition('/')[0].rpartition('.')[2]
        if node.op_type in PRODUCTS and node.input[1] in weights and layer not in FLOAT32_LAYERS:
            yield node


def to_half(model: Any) -> None:
    """Compute most of a float32 graph in float16, and store weights as float16, in place.

    Values are converted only where they enter or leave such a part. Not by ONNX Runtime's
    converter: it also rounds each value between two operators in float32 to float16, in which the
    covariance overflows.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    weights = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    half = half_nodes(graph)
    nodes, casts, halves = [], {}, {}  # converted values and weights by their names

    def cast(name: str, new_name: str, to: int) -> Any:
        return helper.make_node('Cast', [name], [new_name], name=f'{new_name}/cast', to=to)

    def half_weight(name: str) -> str:
        if name not in halves:
            values = numpy_helper.to_array(weights[name])
            halves[name] = numpy_helper.from_array(values.astype(np.float16), f'{name}_half')
        return halves[name].name

    needed = {output.name for output in graph.output}
    needed |= {name for node in graph.node if node.name not in half for name in node.input}
    floats = float_values(graph) | set(weights)
    for node in graph.node:
        if node.name not in half:
            nodes.append(node)
            continue
        for i, name in enumerate(node.input):
            if name in weights:
                node.input[i] = half_weight(name)
            elif name in floats:
                if name not in casts:
                    casts[name] = f'{name}_half'
                    nodes.append(cast(name, casts[name], TensorProto.FLOAT16))
                node.input[i] = casts[name]
        nodes.append(node)
        (name,) = node.output
        casts[name] = node.output[0] = f'{name}_half'
        if name in needed:
            nodes.append(cast(casts[name], name, TensorProto.FLOAT))
    # What stays in float32 has its large weights converted back, once, when the file is loaded.
    large = {
        name
        for name in needed & set(weights)
        if np.prod(weights[name].dims) >= MIN_WEIGHT and fits_half(weights[name])
    }
    restored = [cast(half_weight(name), name, TensorProto.FLOAT) for name in sorted(large)]
    # Shapes and indices stay, whoever reads them.
    used = needed | {t.name for t in graph.initializer if t.name not in weights}
    kept = [t for t in graph.initializer if t.name in used and t.name not in large]
    _replace(graph.initializer, [*kept, *halves.values()])
    _replace(graph.node, [*restored, *nodes])
    del graph.value_info[:]  # their types are others now


def half_nodes(graph: Any) -> set[str]:
    """Return the names of the nodes that can be computed in float16."""
    floats, weights = float_values(graph), {tensor.name: tensor for tensor in graph.initializer}
    chosen = [node for node in products(graph) if fits_half(weights[node.input[1]])]
    names, made = {node.name for node in chosen}, {node.output[0] for node in chosen}
    for node in graph.node:  # in the order of computation
        taken = [name for name in node.input if name in floats]
        if node.op_type in FOLLOWERS and taken and all(name in made for name in taken):
            names.add(node.name)
            made.add(node.output[0])
    return names


def fits_half(weight: Any) -> bool:
    """Return whether float16 can hold a weight."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight).astype(np.float64)
    with np.errstate(over='ignore'):
        error = np.linalg.norm(values.astype(np.float16) - values)
    return bool(error <= MAX_ERROR * np.linalg.norm(values))


def float_values(graph: Any) -> set[str]:
    """Return the names of all values in float32 that are no weights."""
    from onnx import TensorProto

    weights = {tensor.name for tensor in graph.initializer}
    values = [*graph.value_info, *graph.input, *graph.output]
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return floats - weights


def _replace(field: Any, items: list[Any]) -> None:
    del field[:]
    field.extend(items)


def to_int8(model: Any, out: Path, inputs: Iterable[np.ndarray] | None = None) -> None:
    """Write a file whose products with weights are computed in int8.

    Args:
        model (ModelProto): The float32 graph.
        out (Path): The file.
        inputs (Iterable[np.ndarray], optional): Inputs to learn ranges from; see :func:`lower`.
    """
    from onnxruntime import quantization

    kinds = ['MatMul'] if inputs is None else ['MatMul', 'Conv']
    split_linear(model.graph)
    chosen = [node.name for node in products(model.graph) if node.op_type in kinds]
    # 7 bits: processors without int8 dot products add pairs of products in 16 bits.
    options: dict[str, Any] = dict(
        nodes_to_quantize=chosen, op_types_to_quantize=kinds, per_channel=True, reduce_range=True
    )
    if inputs is None:
        quantization.quantize_dynamic(model, out, **options)
        return

    remaining = iter(inputs)

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(remaining, None)
            return None if image is None else {'image': image}

    quantization.quantize_static(model, out, Reader(), **options)


def split_linear(graph: Any) -> None:
    """Write linear layers as a product and a sum, in place.

    ONNX Runtime would do so before it quantizes, but it transposes their weights in place, whatever
    else uses them. In attention, that is the covariance form: there, the weight is hidden from it.
    """
    from onnx import helper, numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    chosen, nodes = {node.name for node in products(graph)}, []
    for node in graph.node:
        nodes.append(node)
        if node.op_type != 'Gemm':
            continue
        x, weight, *bias = node.input  # the exporter drops biases of zero
        if node.name not in chosen:
            node.input[1] = f'{node.name}/weight'
            nodes.insert(-1, helper.make_node('Identity', [weight], [node.input[1]]))
            continue
        matrix = numpy_helper.to_array(weights[weight]).T  # PyTorch stores (outputs, inputs)
        graph.initializer.append(numpy_helper.from_array(matrix.copy(), f'{node.name}/weight'))
        outputs = [f'{node.name}/product'] if bias else node.output
        nodes[-1] = helper.make_node('MatMul', [x, f'{node.name}/weight'], outputs, name=node.name)
        if bias:
            nodes.append(helper.make_node('Add', [*outputs, *bias], node.output))
    _replace(graph.node, nodes)
    used = {name for node in nodes for name in node.input}
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in used])
