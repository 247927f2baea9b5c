"""What holds for every backbone, image and setting."""

import functools
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .cases import FLOATS, HALVES, cases, lay_out, pieces

SCALE = 10 if settings.get_current_profile_name() == 'long' else 1
# Of the largest value of a feature or gradient.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
wanted: Counter = Counter()
tried: Counter = Counter()


def holds(count, **strategies):
    """The property is tried on so many cases, ten times as many in the profile ``long``."""

    def decorate(function):
        wanted[function.__name__] = SCALE * count

        @settings(max_examples=SCALE * count)
        @given(**strategies)
        @functools.wraps(function)
        def test(**drawn):
            function(**drawn)
            tried[function.__name__] += 1

        return test

    return decorate


def assert_same(actual, expected, tolerance=0.0):
    """Equal to a part of the largest value expected, or bit for bit."""
    for a, b in zip(actual, expected, strict=True):
        if tolerance:
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance * b.abs().max().item())
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
    strides = [4, 8, 16, 32][:count] if case.arguments['pyramid'] else [patch_size] * count
    dims = case.model().embed_dims
    for level, stride in zip(levels, strides, strict=True):
        up, down = max(patch_size // stride, 1), max(stride // patch_size, 1)
        size = (max(side * up // down, 1) for side in grid)
        assert level.shape == (case.batch, dims, *size)
        assert level.is_contiguous() and torch.isfinite(level).all()
        assert level.dtype == case.dtype or case.autocast is not None


@holds(120, case=cases(), grad=st.booleans())
def test_the_two_forms_of_attention_agree(case, grad):
    token, covariance = (
        case.run(case.model(attention=form), case.images(), grad)
        for form in ('token', 'covariance')
    )
    assert_same(covariance, token, 10 * TOLERANCE[case.dtype])


@holds(120, case=cases(), data=st.data())
def test_a_permutation_of_the_batch_permutes_the_output(case, data):
    images, model = case.images(), case.model(drop_path_rate=0.0)
    order = data.draw(st.permutations(range(case.batch)))
    expected = [level[order] for level in case.run(model, images)]
    assert_same(case.run(model, images[order]), expected, 10 * TOLERANCE[case.dtype])


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
    assert_same(one, [level[i : i + 1] for level in many], TOLERANCE[case.dtype])


@holds(100, case=cases(), layout=st.sampled_from(['channels_last', 'slice', 'transposed']))
def test_strides_of_the_images_do_not_matter(case, layout):
    images, model = case.images().contiguous(), case.model()
    expected = case.run(model, images)
    assert_same(case.run(model, lay_out(images, layout)), expected, TOLERANCE[case.dtype])


@holds(100, case=cases(modes=('eval', 'norm_eval')))
def test_inference_in_pieces_equals_the_path_of_training(case):
    images, model = case.images(), case.model(drop_path_rate=0.0)
    expected = case.run(model, images, grad=True)
    assert_same(case.run(model, images), expected, TOLERANCE[case.dtype])


@holds(50, case=cases(modes=('eval',)), data=st.data())
def test_a_feature_does_not_depend_on_which_others_are_wanted(case, data):
    features = case.run(case.model(pyramid=False), case.images())
    indices = case.arguments['out_indices']
    i = data.draw(st.integers(0, len(indices) - 1))
    alone = case.run(case.model(pyramid=False, out_indices=indices[i : i + 1]), case.images())
    assert_same(alone, features[i : i + 1])


OPTIONS = [
    dict(with_cp=True, recompute_ffn=False),
    dict(with_cp=False, recompute_ffn=True),
    dict(with_cp=True, recompute_ffn=True),
    dict(with_cp=False, recompute_ffn=False, attention='token'),
    dict(with_cp=False, recompute_ffn=False, attention='covariance'),
]


# BatchNorm over a few values enlarges rounding: float64 where its statistics are the batch's.
STEPS = cases(modes=('norm_eval',)) | cases(modes=('train',), dtypes=(torch.float64,))


@holds(100, case=STEPS, options=st.sampled_from(OPTIONS))
def test_training_is_the_same_with_every_option(case, options):
    plain = step(case, case.model(with_cp=False, recompute_ffn=False))
    assert_same(step(case, case.model(**options)), plain, 10 * TOLERANCE[case.dtype])


def step(case, model):
    """Features, gradients and running statistics of a step of training."""
    images = case.images().requires_grad_()
    levels = case.run(model, images, grad=True)
    with pieces(case.piece):
        loss_of(levels).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    statistics = [buffer.to(case.dtype) for buffer in model.buffers()]
    return [*(level.detach() for level in levels), images.grad, gradients, *statistics]


def loss_of(levels):
    return sum(level.sin().sum() for level in levels)


@holds(50, case=cases(modes=('norm_eval', 'train'), dtypes=(torch.float64,)))
def test_gradients_are_derivatives(case):
    model = case.model()
    step(case, model)
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters]
    directions = [torch.randn_like(p) for p in parameters]
    expected = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    losses = []
    # Small: a BatchNorm over two values is bent sharply.
    for distance in (1e-7, -2e-7):
        for p, direction in zip(parameters, directions, strict=True):
            p.data += distance * direction
        losses.append(loss_of(case.run(model, case.images())))
    scale = sum(g.square().sum() for g in gradients).sqrt().item()
    torch.testing.assert_close((losses[0] - losses[1]) / 2e-7, expected, rtol=0, atol=1e-5 * scale)


def test_at_least_a_thousand_cases(capsys):
    assert all(tried[name] >= wanted[name] for name in tried)
    assert sum(wanted.values()) >= 1000 * SCALE
    with capsys.disabled():
        print(f' {sum(tried.values())} cases of {len(tried)} properties', end=' ')


@pytest.mark.long
def test_ten_times_as_many_cases():
    command = [sys.executable, '-m', 'pytest', '-q', '-m', 'not long', __file__]
    run = subprocess.run(command, env={**os.environ, 'HYPOTHESIS_PROFILE': 'long'})
    assert run.returncode == 0
