"""Writes a model to a file, and lets the file have its name only if it agrees with the model."""

import ast
import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor, nn

from xcit_mm_runtime.files import replacing, write_atomically

from ..errors import UserError
from ..inference.predictors import class_info
from .check import Report, Run, compare, converts
from .detector import Detector
from .graph import Features, Preprocess, Segmentor
from .metadata import KEY, describe, normalization
from .operators import translations
from .precision import lower

# Batch, height and width of the images with which a graph is traced. Odd, so that nothing is taken
# for a multiple of anything.
EXAMPLE = (2, 203, 277)
# Below this, the coarsest levels of the pyramid vanish.
MIN_SIDE = 32


@dataclass
class Options:
    """What the user asks for.

    Args:
        format (str): ``onnx`` or ``torch``.
        backbone (bool): Whether to export the backbone alone. Defaults to False.
        labels (bool): Whether a segmentor gives labels, not logits. Defaults to False.
        uint8 (bool): Whether the graph takes raw values and normalizes them. Defaults to False.
        channel_order (str): Order of the channels of raw values. Defaults to ``rgb``.
        opset (int): Version of ONNX's operators. Defaults to 18.
        precision (str): ``float32``, ``float16`` or ``int8``. Defaults to ``float32``.
    """

    format: str = 'onnx'
    backbone: bool = False
    labels: bool = False
    uint8: bool = False
    channel_order: str = 'rgb'
    opset: int = 18
    precision: str = 'float32'


def export(
    cfg: Config,
    model: Any,
    out: Path,
    options: Options,
    *,
    name: str,
    checkpoint: str,
    stored_meta: dict[str, Any],
    images: Sequence[np.ndarray] = (),
    calibration: Sequence[np.ndarray] | None = None,
    say: Callable[[str], None] = lambda step: None,
) -> Report:
    """Write a model to a file, and its report next to it.

    Args:
        cfg (Config): The config.
        model (nn.Module): The detector or segmentor with its weights, on the CPU.
        out (Path): The file. It gets this name only if it agrees with the model.
        options (Options): What the user asks for.
        name (str): The name of the model.
        checkpoint (str): Where its weights came from.
        stored_meta (dict): Names and colors of the classes; empty for those of the config.
        images (Sequence[np.ndarray]): Images in BGR to check the file with. Defaults to (), drawn
            ones.
        calibration (Sequence[np.ndarray], optional): See :func:`.precision.lower`. Defaults to
            None.
        say (callable): Takes the name of each step as it starts. Defaults to nothing.

    Raises:
        UserError: If the file does not agree with the model.
    """
    model.eval()
    task, order = task_of(model, options.backbone), model_order(model)
    preprocess = preprocessing(model, options)
    given_order = options.channel_order if options.uint8 else order
    opset = options.opset if options.format == 'onnx' else None
    meta = stored_meta or class_info(cfg, None)
    details = (name, checkpoint, meta, task, preprocess, given_order, opset)
    metadata = describe(cfg, model, *details) | {'precision': options.precision}
    say('folding the weights')
    graph = build_graph(model, task, preprocess, options.labels)
    with replacing(out) as unfinished:
        write, load = (write_onnx, load_onnx) if opset else (write_torch, load_torch)
        names = output_names(model, task, options.labels)
        say('tracing the graph, which takes longest')
        write(graph, unfinished, names, metadata)
        if options.precision != 'float32':
            say(f'converting it to {options.precision}')
            with quiet():
                lower(unfinished, metadata, calibration)
        say('comparing the file with PyTorch')
        run = load(unfinished, names)
        raw_order = given_order if options.uint8 else None
        report = compare(model, run, task, raw_order, images, options.precision)
        if not report.passed:
            raise UserError(f'The exported file does not agree with the model:\n{report}')
    content = {'file': out.name, **report.to_dict(), 'metadata': metadata}
    write_atomically(report_path(out), json.dumps(content, indent=2) + '\n')
    return report


def report_path(out: Path) -> Path:
    return out.with_name(out.name + '.report.json')


def task_of(model: Any, backbone_only: bool) -> str:
    if backbone_only:
        return 'features'
    return 'segmentation' if hasattr(model, 'decode_head') else 'detection'


def model_order(model: Any) -> str:
    """The order of the channels that the network takes. Images are read as BGR."""
    return 'rgb' if converts(model.data_preprocessor) else 'bgr'


def preprocessing(model: Any, options: Options) -> Preprocess:
    """What the graph does to its input, from the model's own data_preprocessor."""
    source = model.data_preprocessor
    divisor = getattr(source, 'pad_size_divisor', None)
    pad_value = getattr(source, 'pad_value', 0)
    if divisor is None:  # mmseg's has other names, and pads test images only if told to
        divisor = (source.test_cfg or {}).get('size_divisor') or 1
        pad_value = source.pad_val
    if not options.uint8:
        return Preprocess(divisor=divisor, pad_value=pad_value)
    channels = model.backbone.in_channels
    mean, std = normalization(source)
    return Preprocess(
        mean or [0.0] * channels,
        std or [1.0] * channels,
        channels == 3 and options.channel_order != model_order(model),
        divisor,
        pad_value,
    )


def build_graph(model: Any, task: str, preprocess: Preprocess, labels: bool) -> nn.Module:
    """The graph for a task; see :mod:`.graph` and :mod:`.detector`."""
    if task == 'features':
        graph: nn.Module = Features(model, preprocess)
    elif task == 'segmentation':
        graph = Segmentor(model, preprocess, labels)
    else:
        graph = Detector(model, preprocess)
    return graph.eval().requires_grad_(False)


def output_names(model: Any, task: str, labels: bool) -> list[str]:
    if task == 'features':
        return [f'level_{i}' for i in range(len(model.backbone.out_indices))]
    if task == 'segmentation':
        return ['labels' if labels else 'logits']
    return ['boxes', 'scores', 'labels', *(['masks'] if model.roi_head.with_mask else [])]


def example(metadata: dict[str, Any]) -> Tensor:
    batch, height, width = EXAMPLE
    dtype = getattr(torch, metadata['input']['dtype'])
    return torch.ones(batch, metadata['channels'], height, width, dtype=dtype)


def dynamic_shapes(min_side: int) -> dict[str, dict[int, Any]]:
    """Batch, height and width of the input are free."""
    side = {name: torch.export.Dim(name, min=min_side) for name in ('height', 'width')}
    return {'image': {0: torch.export.Dim('batch'), 2: side['height'], 3: side['width']}}


def write_onnx(graph: nn.Module, path: Path, names: list[str], metadata: dict[str, Any]) -> None:
    """Write a graph as one ONNX file, with its metadata."""
    with quiet():
        program = torch.onnx.export(
            graph,
            (example(metadata),),
            dynamo=True,
            opset_version=metadata['versions']['opset'],
            input_names=['image'],
            output_names=names,
            dynamic_shapes=dynamic_shapes(MIN_SIDE),
            custom_translation_table=translations(),
            verbose=False,
        )
    program = cast(torch.onnx.ONNXProgram, program)
    for node in program.model.graph:
        # The names of the modules help to read the graph. The rest are lines of our source code,
        # with the paths of this machine, and more than half of a small file.
        scopes = ast.literal_eval(node.metadata_props.get('pkg.torch.onnx.name_scopes', "['', '']"))
        node.name = f'{scopes[-2]}/{node.name}'
        node.metadata_props.clear()
    program.model.metadata_props[KEY] = json.dumps(metadata)
    program.save(str(path), external_data=False)


def load_onnx(path: Path, names: list[str]) -> Run:
    """A function that runs an ONNX file on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    return lambda x: dict(zip(names, session.run(names, {'image': x}), strict=True))


def write_torch(graph: nn.Module, path: Path, _: list[str], metadata: dict[str, Any]) -> None:
    """Write a graph as a program of torch.export, with its metadata."""
    with quiet():
        # torch.export treats maps of one pixel as a special case: the coarsest level has two.
        shapes = dynamic_shapes(2 * max(metadata['strides']))
        program = torch.export.export(graph, (example(metadata),), dynamic_shapes=shapes)
        with path.open('wb') as file:
            torch.export.save(program, file, extra_files={f'{KEY}.json': json.dumps(metadata)})


def load_torch(path: Path, names: list[str]) -> Run:
    """A function that runs a program of torch.export."""
    with path.open('rb') as file:
        program = torch.export.load(file).module()

    def run(x: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = program(torch.from_numpy(x))
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        return dict(zip(names, (output.numpy() for output in outputs), strict=True))

    return run


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's progress and its warnings about itself off the screen."""
    level = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter('ignore')
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)
