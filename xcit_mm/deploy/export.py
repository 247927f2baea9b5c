"""Writes a model to a file, and lets the file have its name only if it agrees with the model."""

import ast
import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from mmengine.config import Config
from mmengine.utils import digit_version
from torch import Tensor, nn

from xcit_mm_runtime import Model, load
from xcit_mm_runtime.files import replacing, write_atomically
from xcit_mm_runtime.metadata import KEY, Metadata

from ..errors import UserError
from . import TESTED_TORCH, TOO_OLD
from .check import ExportReport, compare
from .detector import Detector
from .fold import fold, merge_laterals
from .graph import Features, Segmentor
from .metadata import Options, describe, task_of
from .operators import translations
from .precision import lower

# Batch, height and width of the images with which a graph is traced. Odd, so that nothing is taken
# for a multiple of anything.
EXAMPLE = (2, 203, 277)
# Below this, the coarsest levels of the pyramid vanish.
MIN_SIDE = 32
GRAPHS = {'features': Features, 'segmentation': Segmentor, 'detection': Detector}


def export(
    cfg: Config,
    model: Any,
    out: Path,
    options: Options,
    *,
    name: str,
    checkpoint: str,
    images: Sequence[np.ndarray] = (),
    calibration: Sequence[np.ndarray] | None = None,
    say: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Write a model to a file, and its report next to it.

    Args:
        cfg (Config): The config.
        model (nn.Module): The detector or segmentor with its weights, on the CPU, and with the
            names and colors of its classes in ``dataset_meta``.
        out (Path): The file. It gets this name only if it agrees with the model.
        options (Options): What the user asks for.
        name (str): The name of the model.
        checkpoint (str): Where its weights came from.
        images (Sequence[np.ndarray]): Images in BGR to check the file with. Defaults to (), drawn
            ones.
        calibration (Sequence[np.ndarray], optional): See :func:`.precision.lower`. Defaults to
            None.
        say (callable): Takes the name of each step as it starts. Defaults to nothing.

    Raises:
        UserError: If the file does not agree with the model.
    """
    model.eval()
    is_onnx = options.format == 'onnx'
    metadata = describe(cfg, model, options, name, checkpoint)
    say('folding the weights')
    graph = build_graph(model, options)
    with replacing(out) as unfinished:
        say('tracing the graph, which takes longest')
        with explaining_old_torch():
            (write_onnx if is_onnx else write_torch)(graph, unfinished, metadata)
        if options.precision != 'float32':
            say(f'converting it to {options.precision}')
            with quiet():
                lower(unfinished, metadata, calibration)
        say('comparing the file with PyTorch')
        exported = load(unfinished) if is_onnx else load_torch(unfinished, graph.output_names)
        report = compare(model, exported, images)
        if not report.passed:
            raise UserError(f'The exported file does not agree with the model:\n{report}')
    content = {'file': out.name, **asdict(report), 'metadata': exported.metadata.to_dict()}
    write_atomically(report_path(out), json.dumps(content, indent=2) + '\n')
    return report


@contextlib.contextmanager
def explaining_old_torch() -> Iterator[None]:
    """Say so if a torch that is older than those tested cannot trace a graph."""
    try:
        yield
    except Exception as error:
        if digit_version(torch.__version__) >= digit_version(TESTED_TORCH):
            raise
        raise UserError(f'torch cannot trace this network. {TOO_OLD}') from error


def report_path(out: Path) -> Path:
    return out.with_name(out.name + '.report.json')


def build_graph(model: Any, options: Options) -> Any:
    """Return the graph of a model, which is not changed."""
    model = copy.deepcopy(model).eval()
    fold(model)
    if not options.backbone:
        merge_laterals(model)
    return GRAPHS[task_of(model, options)](model, options).eval().requires_grad_(False)


def example(metadata: Metadata) -> Tensor:
    """Return an input with which a graph is traced."""
    batch, height, width = EXAMPLE
    dtype = getattr(torch, metadata.input['dtype'])
    return torch.ones(batch, metadata.channels, height, width, dtype=dtype)


def dynamic_shapes(min_side: int) -> dict[str, dict[int, Any]]:
    """Leave batch, height and width of the input free."""
    side = {name: torch.export.Dim(name, min=min_side) for name in ('height', 'width')}
    return {'image': {0: torch.export.Dim('batch'), 2: side['height'], 3: side['width']}}


def write_onnx(graph: Any, path: Path, metadata: Metadata) -> None:
    """Write a graph as one ONNX file, with its metadata."""
    with quiet():
        program = torch.onnx.export(
            graph,
            (example(metadata),),
            dynamo=True,
            opset_version=cast(dict, metadata.versions)['opset'],
            input_names=['image'],
            output_names=graph.output_names,
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
    program.model.metadata_props[KEY] = json.dumps(metadata.to_dict())
    program.save(str(path), external_data=False)


def write_torch(graph: nn.Module, path: Path, metadata: Metadata) -> None:
    """Write a graph as a program of torch.export, with its metadata."""
    files = {f'{KEY}.json': json.dumps(metadata.to_dict())}
    with quiet(), path.open('wb') as file:
        # torch.export treats maps of one pixel as a special case: the coarsest level has two.
        shapes = dynamic_shapes(2 * max(cast(list, metadata.strides)))
        program = torch.export.export(graph, (example(metadata),), dynamic_shapes=shapes)
        torch.export.save(program, file, extra_files=files)


def load_torch(path: Path, names: list[str]) -> Model:
    """Load a program of torch.export.

    Args:
        path (Path): The file.
        names (list[str]): Names of its outputs.
    """
    files = {f'{KEY}.json': ''}
    with path.open('rb') as file:
        program = torch.export.load(file, extra_files=files).module()

    def run(planes: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = program(torch.from_numpy(planes))
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        return dict(zip(names, (output.numpy() for output in outputs), strict=True))

    return Model(run, Metadata.read({KEY: files[f'{KEY}.json']}, path), path)


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
