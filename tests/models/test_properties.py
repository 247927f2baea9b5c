"""What holds for every backbone, image and setting."""

import functools
from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .cases import FLOATS, HALVES, cases, lay_out

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
    250, case=cases(batches=(0, 3), dtypes=(*FLOATS, *HALVES), autocast=True), grad=st.booleans()
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


@holds(150, case=cases(), grad=st.booleans())
def test_the_two_forms_of_attention_agree(case, grad):
    token, covariance = (
        case.run(case.model(attention=form), case.images(), grad)
        for form in ('token', 'covariance')
    )
    assert_same(covariance, token, 10 * TOLERANCE[case.dtype])


@holds(150, case=cases(), data=st.data())
def test_a_permutation_of_the_batch_permutes_the_output(case, data):
    images, model = case.images(), case.model(drop_path_rate=0.0)
    order = data.draw(st.permutations(range(case.batch)))
    expected = [level[order] for level in case.run(model, images)]
    assert_same(case.run(model, images[order]), expected, 10 * TOLERANCE[case.dtype])


@holds(200, case=cases(dtypes=(*FLOATS, *HALVES), autocast=True), grad=st.booleans())
def test_the_same_input_twice_gives_the_same_output_bit_for_bit(case, grad):
    images, model = case.images(), case.model()
    before = images.clone()
    first = case.run(model, images, grad)
    copies = [level.clone() for level in first]
    second = case.run(model, images, grad)
    assert_same(second, copies)
    assert_same([*first, images], [*copies, before])  # nothing was overwritten


@holds(200, case=cases(modes=('eval', 'norm_eval'), batches=(2, 4)), data=st.data())
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


@holds(50, case=cases(modes=('eval',)))
def test_a_feature_does_not_depend_on_which_others_are_wanted(case):
    indices = case.arguments['out_indices']
    every = case.model(pyramid=False, out_indices=tuple(range(indices[-1] + 1)))
    expected = [case.run(every, case.images())[i] for i in indices]
    assert_same(case.run(case.model(pyramid=False), case.images()), expected)


OPTIONS = [
    dict(with_cp=True, recompute_ffn=False),
    dict(with_cp=False, recompute_ffn=True),
    dict(with_cp=True, recompute_ffn=True),
    dict(with_cp=False, recompute_ffn=False, attention='token'),
    dict(with_cp=False, recompute_ffn=False, attention='covariance'),
]


# BatchNorm over a few values enlarges rounding: float64 where its statistics are the batch's.
STEPS = cases(modes=('norm_eval',)) | cases(modes=('train',), dtypes=(torch.float64,))


@holds(120, case=STEPS, options=st.sampled_from(OPTIONS))
def test_training_is_the_same_with_every_option(case, options):
    plain = _step(case, dict(with_cp=False, recompute_ffn=False))
    assert_same(_step(case, options), plain, 10 * TOLERANCE[case.dtype])


def _step(case, options):
    """Features, gradients and running statistics of a step of training."""
    model, images = case.model(**options), case.images().requires_grad_()
    levels = case.run(model, images, grad=True)
    sum((level * level.detach().sin()).sum() for level in levels).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    statistics = [buffer.to(case.dtype) for buffer in model.buffers()]
    return [*(level.detach() for level in levels), images.grad, gradients, *statistics]


def test_at_least_a_thousand_cases(capsys):
    assert all(tried[name] >= wanted[name] for name in tried)
    assert sum(wanted.values()) >= 1000 * SCALE
    with capsys.disabled():
        print(f' {sum(tried.values())} cases of {len(tried)} properties', end=' ')
