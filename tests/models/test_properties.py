"""What holds for every backbone, image and setting."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .cases import FLOATS, HALVES, cases, lay_out, pieces
from .rounding import relative_error

SCALE = 10 if settings.get_current_profile_name() == 'long' else 1
wanted: dict[str, int] = {}


def holds(count, **strategies):
    """Test the property on so many cases, ten times as many in the profile ``long``."""

    def decorate(function):
        name = function.__name__
        wanted[name] = SCALE * count
        tried = 0

        @settings(max_examples=SCALE * count)
        @given(**strategies)
        @functools.wraps(function)
        def try_cases(**drawn):
            nonlocal tried
            function(**drawn)
            tried += 1

        def test():
            try_cases()
            assert tried >= wanted[name]

        return test

    return decorate


def assert_same(actual, expected, tolerance=0.0):
    """Equal up to rounding, relative to the norm of what was expected; or bit for bit."""
    for a, b in zip(actual, expected, strict=True):
        if tolerance:
            assert a.shape == b.shape and relative_error(a, b) < tolerance
        else:
            assert torch.equal(a, b)


@holds(
    200, case=cases(batches=(0, 3), dtypes=(*FLOATS, *HALVES), autocast=True), grad=st.booleans()
)
def test_shapes_and_strides_are_as_promised(case, grad):
    levels = case.run(case.model(), case.images(), grad)
    patch_size = case.arguments['patch_size']
    grid = case.size
    for _ in range({8: 3, 16: 4}[patch_size]):  # every convolution of the stem rounds up
        grid = tuple((side + 1) // 2 for side in grid)
    count = len(case.arguments['out_indices'])
    strides = case.arguments['strides'] or [patch_size] * count
    dims = case.model().embed_dims
    for level, stride in zip(levels, strides, strict=True):
        up, down = max(patch_size // stride, 1), max(stride // patch_size, 1)
        size = (max(side * up // down, 1) for side in grid)
        assert level.shape == (case.batch, dims, *size)
        assert level.is_contiguous() and torch.isfinite(level).all()
        assert level.dtype == case.dtype or case.autocast is not None


# Rounding in float64 is near 1e-16. Few tokens, or BatchNorm over few values, enlarge it by some
# orders of magnitude, above all in gradients; a mistake in a formula is larger by many more.
FLOAT64_TOLERANCE = 1e-9


@holds(
    150, case=cases(modes=('eval', 'norm_eval'), dtypes=(torch.float32,))
    | cases(dtypes=(torch.float64,)),
)  # fmt: skip
def test_the_fast_executions_equal_the_plain_modules(case):
    plain, fast = (outputs(case, case.model(fast=fast)) for fast in (False, True))
    is_double = case.dtype == torch.float64
    assert_same(fast, plain, FLOAT64_TOLERANCE if is_double else case.tolerance())


@holds(150, case=cases(dtypes=(torch.float64,)))
def test_gradients_of_the_fast_execution_equal_those_of_the_plain_modules(case):
    plain, fast = (step(case, case.model(fast=fast)) for fast in (False, True))
    assert_same(fast, plain, FLOAT64_TOLERANCE)


def outputs(case, model):
    """Features and running statistics."""
    levels = case.run(model, case.images())
    return [*levels, *statistics_of(case, model)]


def step(case, model):
    """Features, gradients and running statistics of a step of training."""
    images = case.images().requires_grad_()
    levels = case.run(model, images, grad=True)
    with pieces(case.piece):
        loss_of(levels).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    return [*levels, images.grad, gradients, *statistics_of(case, model)]


def statistics_of(case, model):
    return [buffer.to(case.dtype) for buffer in model.buffers()]


def loss_of(levels):
    return sum(level.sin().sum() for level in levels)


@holds(120, case=cases(), data=st.data())
def test_a_permutation_of_the_batch_permutes_the_output(case, data):
    images, model = case.images(), case.model(drop_path_rate=0.0)
    order = data.draw(st.permutations(range(case.batch)))
    expected = [level[order] for level in case.run(model, images)]
    assert_same(case.run(model, images[order]), expected, case.tolerance())


@holds(150, case=cases(dtypes=(*FLOATS, *HALVES), autocast=True), grad=st.booleans())
def test_the_same_input_twice_gives_the_same_output_bit_for_bit(case, grad):
    images, model = case.images(), case.model()
    before = images.clone()
    first = case.run(model, images, grad)
    copies = [level.clone() for level in first]
    second = case.run(model, images, grad)
    assert_same(second, copies)
    assert_same([*first, images], [*copies, before])  # nothing was overwritten


@holds(150, case=cases(modes=('eval', 'norm_eval'), batches=(2, 4)), data=st.data())
def test_a_batch_of_one_equals_that_item_of_a_batch_of_many(case, data):
    images, model = case.images(), case.model(drop_path_rate=0.0)
    i = data.draw(st.integers(0, case.batch - 1))
    many = case.run(model, images)
    one = case.run(model, images[i : i + 1])
    assert_same(one, [level[i : i + 1] for level in many], case.tolerance())


@holds(100, case=cases(), layout=st.sampled_from(['channels_last', 'slice', 'transposed']))
def test_strides_of_the_images_do_not_matter(case, layout):
    images, model = case.images().contiguous(), case.model()
    expected = case.run(model, images)
    assert_same(case.run(model, lay_out(images, layout)), expected, case.tolerance())


@holds(50, case=cases(modes=('eval',)), data=st.data())
def test_a_feature_does_not_depend_on_which_others_are_returned(case, data):
    features = case.run(case.model(pyramid=False, strides=None), case.images())
    indices = case.arguments['out_indices']
    i = data.draw(st.integers(0, len(indices) - 1))
    changes = dict(pyramid=False, strides=None, out_indices=indices[i : i + 1])
    alone = case.run(case.model(**changes), case.images())
    assert_same(alone, features[i : i + 1])


@holds(50, case=cases(modes=('norm_eval', 'train'), dtypes=(torch.float64,)))
def test_gradients_are_derivatives(case):
    model = case.model()
    step(case, model)
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters]
    directions = [torch.randn_like(p) for p in parameters]
    expected = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    scale = sum(g.square().sum() for g in gradients).sqrt().item()
    values = [p.detach().clone() for p in parameters]

    def loss_at(distance):
        for p, value, direction in zip(parameters, values, directions, strict=True):
            p.data = value + distance * direction
        return loss_of(case.run(model, case.images()))

    # One step must agree. BatchNorm over two values is so strongly curved that the best one differs
    # by orders of magnitude: curvature counts with the step squared, rounding with its inverse.
    errors = [
        ((loss_at(size) - loss_at(-size)) / (2 * size) - expected).abs().item() / scale
        for size in (1e-7, 1e-8, 1e-9)
    ]
    assert min(errors) < 1e-5


def test_at_least_a_thousand_cases():
    """Each property checks that it was tried on as many cases as it wants."""
    assert sum(wanted.values()) >= 1000 * SCALE


@pytest.mark.long
def test_ten_times_as_many_cases():
    command = [sys.executable, '-m', 'pytest', '-q', '-m', 'not long', __file__]
    run = subprocess.run(command, env={**os.environ, 'HYPOTHESIS_PROFILE': 'long'})
    assert run.returncode == 0
