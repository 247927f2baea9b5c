"""``python -m dev.gpu_cost``: what a GPU would have to do, counted without one.

Each network runs on fake tensors of a GPU. Eager kernels are torch's operators: their bytes are
those of all inputs and outputs, their operations those of torch's flop counter. Compiled kernels
are those of Inductor after fusion, with the bytes that Inductor says they access.
"""

import argparse
import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from xcit_mm.models import XCiT
from xcit_mm.models.fast import compiled, fingerprint
from xcit_mm.models.layers import XCiTLayer
from xcit_mm.models.variants import resolve_variant
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.errors import UserError

from .benchmark.candidates import build_backbone
from .pages import write_page

PAGE = Path(__file__).parents[1] / 'docs' / 'studies' / 'gpu_cost.md'
LAUNCH = 5e-6  # seconds; a kernel takes at least that long


class GPU(NamedTuple):
    """Published figures: bytes per second, and operations per second by number of bytes."""

    bandwidth: float
    half: float
    single: float

    def seconds(self, kernel: 'Kernel') -> float:
        rate = self.half if kernel.is_half else self.single
        return max(kernel.bytes / self.bandwidth, kernel.flops / rate, LAUNCH)


# Dense products on tensor cores in half precision; float32 without TF32.
GPUS = {
    'A100': GPU(1.555e12, 312e12, 19.5e12),
    'H100': GPU(3.35e12, 989e12, 67e12),
    'RTX 4090': GPU(1.008e12, 165e12, 82.6e12),
}


class Kernel(NamedTuple):
    """A launch, the bytes that it moves and its multiplications and additions in products."""

    bytes: float
    flops: float
    is_half: bool


class Case(NamedTuple):
    """A row of the table."""

    patch_size: int
    batch: int
    size: tuple[int, int]
    amp: bool
    training: bool

    def __str__(self) -> str:
        height, width = self.size
        work = 'training step' if self.training else 'forward'
        precision = 'AMP' if self.amp else 'float32'
        return f'S12/{self.patch_size}, {self.batch} x {height}x{width}, {precision}, {work}'


CASES = [
    Case(patch_size, batch, size, amp, training)
    for patch_size, batch, size in (
        (16, 1, (224, 224)),
        (16, 64, (224, 224)),
        (16, 2, (800, 1344)),
        (8, 2, (800, 1344)),
    )
    for amp in (True, False)
    for training in (False, True)
]
# How many times as fast as timm eager ours compiled should be with AMP, on an A100.
AIMS = {(16, 64, (224, 224)): 1.3, (16, 2, (800, 1344)): 2.0, (8, 2, (800, 1344)): 2.0}
HEIGHTS, FORMS_BATCH = (800, 1600), 2  # of compare_forms
COLUMNS = ('timm eager', 'timm compiled', 'ours eager', 'ours compiled')


class Counter(TorchDispatchMode):
    """Records the kernels of eager operators."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        kernel = operator_kernel(func, args, kwargs or {}, out)
        if kernel is not None:
            self.kernels.append(kernel)
        return out


def operator_kernel(func: Any, args: tuple, kwargs: dict, out: Any) -> Kernel | None:
    """Return the kernel of an operator; None if it is a view, or allocates only."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    packet = getattr(func, 'overloadpacket', func)
    is_in_place = func._schema.is_mutable
    if func.is_view or packet.__name__ in ALLOCATIONS or not (results or is_in_place):
        return None
    flops = 0
    if packet.__name__ == 'convolution_backward':
        grad, weight, wanted = args[0], args[2], args[-1]  # torch's own formula forgets the groups
        flops = 2 * grad.numel() * weight[0].numel() * sum(wanted[:2])
    elif packet in flop_registry:
        factors = [arg for arg in args if not isinstance(arg, torch.dtype)]  # not bmm's out_dtype
        flops = flop_registry[packet](*factors, **kwargs, out_val=out)
    elif packet.__name__ in IN_PLACE_PRODUCTS:
        left, right = args[1], args[2]
        flops = 2 * left.numel() * right.shape[-1]
    inputs = [t for t in tensors if t.ndim >= 2 and t.is_floating_point()]
    is_half = bool(inputs) and all(t.element_size() == 2 for t in inputs[-2:])
    moved = sum(t.numel() * t.element_size() for t in (*tensors, *results))
    return Kernel(moved, flops, is_half)


ALLOCATIONS = (
    *('empty', 'empty_like', 'empty_strided', 'new_empty', 'new_empty_strided', 'lift_fresh'),
    *('detach', 'view', '_unsafe_view', '_reshape_alias', 'unbind', 'split'),
)
IN_PLACE_PRODUCTS = ('addmm_', 'baddbmm_')


# Inductor, for a GPU that is not there


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let Inductor schedule kernels for an A100; nothing is compiled or run."""
    from torch._dynamo.device_interface import get_interface_for_device
    from torch._inductor import scheduler

    properties = SimpleNamespace(
        type='cuda', index=0, name='A100', cc=80, major=8, minor=0, gcnArchName='',
        multi_processor_count=108, regs_per_multiprocessor=65536, warp_size=32,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, total_memory=40 << 30,
        L2_cache_size=40 << 20, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=163 << 10, shared_memory_per_multiprocessor=164 << 10,
    )  # fmt: skip
    interface = get_interface_for_device('cuda')
    with ExitStack() as stack:
        for where, name, value in (
            (torch.cuda, 'is_available', True),
            (torch.cuda, 'current_device', 0),
            (torch.cuda, 'get_device_properties', properties),
            (torch.cuda, 'get_device_capability', (8, 0)),
            (torch.cuda, 'get_rng_state', torch.zeros(16, dtype=torch.uint8, device='cpu')),
            (torch.cuda, 'set_rng_state', None),
            (interface, 'current_device', 0),
            (interface, 'get_device_properties', properties),
            (interface, 'get_compute_capability', 80),
            (interface, 'is_triton_capable', True),
            (scheduler, 'has_triton', True),
        ):
            answer = functools.partial(_answer, value)
            stack.enter_context(mock.patch.object(where, name, answer))
        yield


def _answer(value: Any, *_: Any, **__: Any) -> Any:
    return value


def scheduled_kernels(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Kernel]:
    """Return the kernels that Inductor makes of a graph, after fusion."""
    from torch._guards import detect_fake_mode
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import NopKernelSchedulerNode
    from torch._inductor.virtualized import V

    with V.set_fake_mode(detect_fake_mode(inputs)), V.set_debug_handler(DebugContext()):
        view_to_reshape(graph_module)
        post_grad_passes(graph_module, is_inference=False)
        graph = GraphLowering(graph_module, shape_env=None)
        with V.set_graph_handler(graph):
            graph.run(*inputs)
            graph._update_scheduler()
            return [
                scheduled_kernel(node)
                for node in graph.scheduler.nodes
                # A MultiOutput is one of the results of another kernel.
                if not isinstance(node, NopKernelSchedulerNode)
                and not isinstance(node.node, MultiOutput)
            ]


def scheduled_kernel(node: Any) -> Kernel:
    """Return the kernel of a node of Inductor's scheduler."""
    moved = node.get_read_write_buffers_sizes()
    for origin in node.node.origins if node.is_extern() else ():
        if origin.op == 'call_function' and origin.target.overloadpacket in flop_registry:
            args, kwargs, out = torch.fx.node.map_arg(
                (origin.args, origin.kwargs, origin), lambda each: each.meta['val']
            )
            kernel = cast(Kernel, operator_kernel(origin.target, args, kwargs, out))
            return kernel._replace(bytes=moved)
    return Kernel(moved, 0, False)


class InductorCounter(Counter):
    """Records the kernels of eager operators, and those of functions that Inductor compiles."""

    is_inside = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if self.is_inside:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        """Return a function of parameters, buffers and inputs of a module, compiled by Inductor."""
        from torch._functorch.aot_autograd import aot_function
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table

        def run(tensors: Mapping[str, Tensor], *inputs: Any) -> Any:
            return torch.func.functional_call(module, dict(tensors), inputs)

        compiled_run = aot_function(
            run,
            fw_compiler=cast(Any, self._count),
            bw_compiler=cast(Any, self._count),
            partition_fn=functools.partial(
                min_cut_rematerialization_partition, compiler='inductor'
            ),
            decompositions=select_decomp_table(),
        )

        def run_uncounted(*args: Any) -> Any:
            with self.uncounted():
                return compiled_run(*args)

        return run_uncounted

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not record operators."""
        was_inside, self.is_inside = self.is_inside, True
        try:
            yield
        finally:
            self.is_inside = was_inside

    def _count(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        from functorch.compile import make_boxed_func  # type: ignore[import-untyped]

        with self.uncounted():
            kernels = scheduled_kernels(copy.deepcopy(graph_module), inputs)

        def run(*args: Any) -> Any:
            self.kernels += kernels
            with self.uncounted():
                return graph_module(*args)

        return make_boxed_func(run)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class Layer(nn.Module):
    """A layer with the arguments that are not tensors."""

    def __init__(self, layer: XCiTLayer, *settings: Any) -> None:
        super().__init__()
        self.layer = layer
        self.settings = settings

    def forward(self, x: Tensor) -> Tensor:
        height, width, form, recompute = self.settings
        return compiled.run_layer(self.layer, x, height, width, form, [None] * 3, recompute)


def compiled_layers(counter: InductorCounter) -> Callable[..., Tensor]:
    """Return what stands in for the compiled layer: counted once, run for each layer."""
    known: dict[tuple, Callable[..., Any]] = {}

    def run(
        layer: Any, x: Tensor, height: int, width: int, form: str, _: Any, again: Any
    ) -> Tensor:
        wrapped, key = Layer(layer, height, width, form, again), (form, x.requires_grad)
        if key not in known:
            known[key] = counter.compile(wrapped)
        return known[key](tensors_of(wrapped), x)

    return run


# Autograd, for a GPU that is not there


@contextmanager
def python_autograd() -> Iterator[None]:
    """Run backward passes in Python: torch's own engine asks a driver about every GPU."""
    with (
        mock.patch.object(torch.autograd, '_engine_run_backward', run_backward),
        mock.patch.object(torch.autograd.graph, '_engine_run_backward', run_backward),
        # By this number, checkpoints know that they recompute for the same backward pass.
        mock.patch.object(torch._C, '_current_graph_task_id', lambda: 1),
    ):
        yield


def run_backward(
    outputs: Sequence[Any],
    grads: Sequence[Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Any] = (),
    *_: Any,
    **__: Any,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs, none of which depends on another, as torch's engine does.

    Those of parameters are not kept.
    """
    wanted = [_edge(each) for each in inputs]
    ends = {node for node, _ in wanted}
    ready: dict[Any, dict[int, Tensor]] = {}
    for output, grad in zip(outputs, grads, strict=True):
        node, index = _edge(output)
        _accumulate(ready, node, index, cast(Tensor, grad))
    results: dict[Any, dict[int, Tensor]] = {}
    with torch.set_grad_enabled(create_graph):
        for node in _in_order(list(ready), ends):
            arrived = results[node] = ready.pop(node, {})
            if not arrived or node in ends or not node.next_functions:
                continue
            for (following, index), grad in _apply(node, arrived):
                if following is not None and grad is not None:
                    _accumulate(ready, following, index, grad)
    return tuple(results.get(node, {}).get(index) for node, index in wanted)


def _edge(tensor: Any) -> tuple[Any, int]:
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _in_order(nodes: list[Any], ends: set[Any]) -> list[Any]:
    """Return all nodes of a graph up to its ends, each before those that it leads to."""
    order: list[Any] = []
    state: dict[Any, str] = {}
    while nodes:
        node = nodes[-1]
        if node not in state:
            state[node] = 'open'
            following = [] if node in ends else [each for each, _ in node.next_functions]
            nodes += [each for each in following if each is not None and each not in state]
            continue
        nodes.pop()
        if state[node] == 'open':
            state[node] = 'done'
            order.append(node)
    return order[::-1]


def _accumulate(ready: dict[Any, dict[int, Tensor]], node: Any, index: int, grad: Tensor) -> None:
    """Add a gradient to those that arrived at a node, in the shape and type of its output."""
    described = node._input_metadata[index]
    if grad.shape != described.shape:
        grad = grad.sum_to_size(described.shape)
    grad = grad.to(described.dtype)
    arrived = ready.setdefault(node, {})
    arrived[index] = grad if index not in arrived else arrived[index] + grad


def _apply(node: Any, arrived: Mapping[int, Tensor]) -> Iterator[tuple[Any, Tensor | None]]:
    """Return the edges to the inputs of a node, with their gradients, from those of its outputs."""
    is_ours = isinstance(node, torch.autograd.function.BackwardCFunction)  # in Python
    grads = [
        torch.zeros(each.shape, dtype=each.dtype, device=each.device)
        if is_ours and index not in arrived
        else arrived.get(index)
        for index, each in enumerate(node._input_metadata)
    ]
    results = node.apply(*grads) if is_ours else node(*grads)
    results = results if isinstance(results, tuple) else (results,)
    if not is_ours:
        return zip(node.next_functions, results, strict=True)
    # One result for each argument, but edges for tensors alone.
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    needed = itertools.compress(results, node.needs_input_grad)
    return zip(edges, needed, strict=True)


# The table


def count(column: str, case: Case, **options: Any) -> list[Kernel]:
    """Return the kernels of a forward pass or of a training step, without the optimizer.

    Args:
        column (str): One of :data:`COLUMNS`.
        case (Case): The row.
        **options: Arguments of our backbone.
    """
    name = column.split()[0]
    counter = InductorCounter()
    with FakeTensorMode(), ExitStack() as stack:
        with torch.device('cuda'):
            if column == 'ours compiled':
                options['compile'] = True
            model = build_backbone(name, 's12', case.patch_size, **options).train(case.training)
            images = torch.empty(case.batch, 3, *case.size)
        if isinstance(model, XCiT):
            model.as_built = fingerprint(model)
        run: Callable[[Tensor], Any] = model
        if column == 'ours compiled':
            layer = compiled_layers(counter)
            stack.enter_context(mock.patch.object(compiled, '_compiled', lambda _: layer))
        elif column == 'timm compiled':
            run = functools.partial(counter.compile(model), tensors_of(model))
        stack.enter_context(pretended_gpu())
        stack.enter_context(python_autograd())
        stack.enter_context(torch.set_grad_enabled(case.training))
        stack.enter_context(counter)
        with torch.autocast('cuda', torch.float16) if case.amp else nullcontext():
            levels = run(images)
        if case.training:
            torch.autograd.backward(levels, [torch.ones_like(level) for level in levels])
    return counter.kernels


def compare_forms(training: bool) -> tuple[float, float, float]:
    """Return how the forms of attention differ in a layer: an entry of ``GPU_COUNTS`` in xca.py."""
    saved, added = [], []  # for two numbers of tokens
    for height in HEIGHTS:
        case = Case(16, FORMS_BATCH, (height, 1344), True, training)
        token, covariance = (
            count('ours eager', case, attention=form) for form in ('token', 'covariance')
        )
        saved.append(sum(k.bytes for k in token) - sum(k.bytes for k in covariance))
        added.append(len(covariance) - len(token))
    # What is saved is linear in the number of tokens.
    variant = resolve_variant('s12', 16)
    dims, per_layer = variant.embed_dims, variant.depth * FORMS_BATCH
    tokens = [height // 16 * 1344 // 16 for height in HEIGHTS]
    slope = (saved[1] - saved[0]) / (tokens[1] - tokens[0])
    constant = slope * tokens[0] - saved[0]
    return (
        slope / per_layer / dims,
        constant / per_layer / dims**2,
        added[0] / variant.depth,
    )


def cell(kernels: Sequence[Kernel]) -> str:
    """Return kernels, gigabytes and teraflops as text."""
    moved, flops = sum(k.bytes for k in kernels) / 1e9, sum(k.flops for k in kernels) / 1e12
    return f'{len(kernels):,} / {moved:.1f} / {flops:.2f}'


def tables(counted: Mapping[Case, Mapping[str, Sequence[Kernel]]]) -> str:
    """Return the two tables: what is counted, and the rooflines that follow."""
    lines = ['| | ' + ' | '.join(COLUMNS) + ' |', '|---' * (len(COLUMNS) + 1) + '|']
    for case, row in counted.items():
        cells = [cell(row[column]) if column in row else '-' for column in COLUMNS]
        lines.append(f'| {case} | ' + ' | '.join(cells) + ' |')
    lines += ['', '| | ' + ' | '.join(f'{gpu}: ms, speedups' for gpu in GPUS) + ' |']
    lines.append('|---' * (len(GPUS) + 1) + '|')
    for case, row in counted.items():
        cells = []
        for gpu in GPUS.values():
            others = [
                f'{speedup(row, name, gpu):.2f}x' if name in row else '-' for name in COLUMNS[1:]
            ]
            base = sum(map(gpu.seconds, row['timm eager']))
            cells.append(f'{1e3 * base:.1f}, ' + ' / '.join(others))
        lines.append(f'| {case} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def speedup(row: Mapping[str, Sequence[Kernel]], column: str, gpu: GPU) -> float:
    """Return how many times as fast as timm eager a column is, by the roofline."""
    base, other = (sum(map(gpu.seconds, row[name])) for name in ('timm eager', column))
    return base / other


def aims(counted: Mapping[Case, Mapping[str, Sequence[Kernel]]]) -> str:
    """Return which aims are met."""
    lines = ['| ours compiled against timm eager, A100 | aim | counted | |', '|---|---|---|---|']
    for case, row in counted.items():
        aim = AIMS.get((case.patch_size, case.batch, case.size))
        if case.amp and aim is not None:
            reached = speedup(row, 'ours compiled', GPUS['A100'])
            verdict = 'met' if reached >= aim else 'missed'
            lines.append(f'| {case} | {aim:.1f}x | {reached:.2f}x | {verdict} |')
    worst = min(
        speedup(row, 'ours eager', gpu) for row in counted.values() for gpu in GPUS.values()
    )
    verdict = 'met' if worst >= 1 else 'missed'
    lines.append(f'| ours eager, worst row and GPU | 1.0x | {worst:.3f}x | {verdict} |')
    return '\n'.join(lines)


def page(counted: Mapping[Case, Mapping[str, Sequence[Kernel]]]) -> str:
    """Return the page of the docs."""
    rates = '\n'.join(
        f'| {name} | {gpu.bandwidth / 1e12:.2f} TB/s | {gpu.half / 1e12:.0f} | '
        f'{gpu.single / 1e12:.1f} |'
        for name, gpu in GPUS.items()
    )
    return f"""# Cost on a GPU, counted

These are counts, not measurements: no GPU was there. `python -m dev.gpu_cost` prints them, in an
environment whose PyTorch was built for CUDA (here {torch.__version__}); it needs no GPU.

Each network is the backbone without a pyramid. Eager kernels are PyTorch's operators on fake
tensors: the bytes of a kernel are those of its inputs and outputs, its operations those of its
products. Compiled kernels are Inductor's after fusion, scheduled for an A100 and the given image
size, with the bytes that Inductor says they access. It counts a small slice of a tensor as the
whole tensor. Ours is compiled layer by layer, stem and pyramid are not; timm's is compiled as a
whole for one image size, and fails at the next one.

A training step is forward and backward without the optimizer. PyTorch's own autograd engine asks
the driver about every GPU, so the command walks the graph of autograd in Python; a test holds its
kernels equal to the engine's. A dash is a cell that was not counted.

What was aimed for, and what the tables below say:

{aims(counted)}

The missed rows are bound by memory and launches, not by products: many kernels of S12/16 take no
longer than their launch, GELU between the two products of the feed-forward network is a pass of its
own, and so are the steps of the stem.

Kernels / GB moved / Tflop in products:

{tables(counted)}

The second table has the time of timm eager by a roofline, and how many times as fast timm
compiled / ours eager / ours compiled are by it. A kernel takes the longest of bytes / bandwidth,
operations / rate, and {LAUNCH * 1e6:.0f} µs for its launch. The figures of the vendor:

| | memory | half precision, Tflop/s | float32, Tflop/s |
|---|---|---|---|
{rates}
"""


def run(args: argparse.Namespace) -> int:
    if torch.version.cuda is None:
        raise UserError(
            f'PyTorch {torch.__version__} was built without CUDA. Run this in an environment with '
            'a build for CUDA, such as "pip install torch" gives on Linux; it needs no GPU.'
        )
    if args.forms:
        for work, training in (('inference', False), ('training', True)):
            saved, added, kernels = compare_forms(training)
            print(
                f'{work}: the covariance form saves {saved:.0f} bytes per number of the tokens, '
                f'and adds {added:.0f} per element of a d x d matrix and {kernels:.0f} kernels'
            )
        return 0
    counted: dict[Case, dict[str, list[Kernel]]] = {}
    for case in CASES[:1] if args.quick else CASES:
        counted[case] = {}
        for column in COLUMNS:
            if column == 'timm compiled' and case.training and not args.all:
                continue
            counted[case][column] = count(column, case)
            print(f'{case}, {column}: {cell(counted[case][column])}', flush=True)
    print(tables(counted))
    if not args.quick:
        write_page(PAGE, page(counted))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.gpu_cost',
        description="Count the kernels, bytes and operations of our backbone and of timm's on a "
        'GPU, eager and compiled, without one. Prints two tables and writes '
        'docs/studies/gpu_cost.md. Takes about 10 minutes. Needs a PyTorch built for CUDA.',
    )
    parser.add_argument('--quick', action='store_true', help='only the first row; no page')
    parser.add_argument(
        '--forms',
        action='store_true',
        help='only how the two forms of attention differ, by which the backbone chooses: '
        'GPU_COUNTS in xcit_mm/models/fast/xca.py; no page',
    )
    parser.add_argument(
        '--all',
        action='store_true',
        help='also the training of timm compiled, which takes half an hour more: Inductor gets all '
        'layers at once',
    )
    return explain_errors(run, parser.parse_args(argv))


if __name__ == '__main__':
    sys.exit(main())
