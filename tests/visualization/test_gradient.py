"""Gradient-weighted maps where the answer is known, and against finite differences."""

import numpy as np
import pytest
import torch

from xcit_mm.engine.testing import set_windows
from xcit_mm.inference.predictors import CheckpointPredictor
from xcit_mm.visualization import gradient_maps
from xcit_mm.visualization.gradient import explain
from xcit_mm_runtime.errors import ImageError

from .. import tiny

GRID, CENTER = (5, 7), 17  # row 2, column 3


def tokens_of(backbone, images):
    return list(backbone.trunk_outputs(images))[-1][0][0]


def inputs(backbone):
    sides = [side * backbone.patch_size for side in GRID]
    return torch.randn(1, 3, *sides, dtype=next(backbone.parameters()).dtype)


def test_a_linear_score_is_the_sum_of_its_map_and_zero_elsewhere():
    backbone = tiny.backbone('2 layers')
    images, weights = inputs(backbone), torch.randn(16)
    maps = gradient_maps(backbone, lambda: tokens_of(backbone, images)[CENTER] @ weights, [2])
    expected = np.zeros(GRID)
    with torch.no_grad():
        expected.flat[CENTER] = tokens_of(backbone, images)[CENTER] @ weights
    assert maps.shape == (1, *GRID)
    np.testing.assert_allclose(maps[0], expected, rtol=1e-5)


@pytest.mark.parametrize('attention', [False, True])
def test_without_attention_a_layer_sees_five_tokens_by_five(attention):
    # In float32, the small effect of attention may vanish in a token.
    backbone = tiny.backbone('3 layers').double()
    if not attention:
        for layer in backbone.layers:
            layer.gamma1.data.zero_()
    images = inputs(backbone)

    def score():
        return tokens_of(backbone, images)[CENTER].sum()

    before, last = gradient_maps(backbone, score, [2, 3])
    near = np.zeros(GRID, bool)
    near[:, 1:6] = True
    assert (before[near] != 0).all()
    assert (before[~near] != 0).all() == attention and (before[~near] == 0).all() != attention
    assert np.count_nonzero(last) == 1


def test_maps_are_derivatives():
    backbone = tiny.backbone('3 layers').double()
    images = inputs(backbone)

    def score():
        return tokens_of(backbone, images).square().sum().log()

    def faded(place, factor):
        def scale(module, args, output):
            output = output.clone()
            output[:, place] *= factor
            return output

        handle = backbone.layers[1].register_forward_hook(scale)
        with torch.no_grad():
            value = score().item()
        handle.remove()
        return value

    (found,) = gradient_maps(backbone, score, [2])
    # The error of a central difference is about step**2 = 1e-8, that of rounding 1e-16 / step.
    expected = [(faded(i, 1 + 1e-4) - faded(i, 1 - 1e-4)) / 2e-4 for i in range(found.size)]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-5, atol=1e-6 * np.ptp(found))
    assert np.ptp(found) > 0


def test_the_model_is_left_as_it_was_frozen_recomputed_or_not():
    backbone = tiny.backbone('3 layers')
    images = inputs(backbone)
    expected = gradient_maps(backbone, lambda: tokens_of(backbone, images).sum())
    assert all(p.grad is None for p in backbone.parameters())
    assert not any(layer._forward_hooks for layer in backbone.layers)
    backbone.with_cp = True
    found = gradient_maps(backbone, lambda: tokens_of(backbone, images).sum())
    assert backbone.with_cp
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    backbone.requires_grad_(False)
    found = gradient_maps(backbone, lambda: tokens_of(backbone, images).sum())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match='more than one window'):
        gradient_maps(backbone, lambda: sum(tokens_of(backbone, images).sum() for _ in range(2)))


@pytest.fixture(scope='module')
def photo():
    return np.random.default_rng(1).integers(0, 256, (120, 160, 3), dtype=np.uint8)


def predictor(head):
    cfg = tiny.recipe(head, 16)
    return CheckpointPredictor(cfg, tiny.build(cfg))


def test_a_detection_and_a_class(photo):
    model = predictor('mask_rcnn')
    found = model(photo)
    second = explain(model, photo, detection=2, layers=[1, 4])
    assert second.maps.shape[0] == 2 and second.maps.any()
    name = f'{found.names[1]} {found.scores[1]:.2f}'
    assert f'detection 2 of {len(found.scores)}, {name}' in second.title
    assert second.image.shape == (96, 128, 3)  # as large as the model saw it
    assert len(second.draw().axes) == 1 + 2 + 1
    first = explain(model, photo, detection=1, layers=[1, 4])
    label = int(found.labels[0])
    of_class = explain(model, photo, label=label, layers=[1, 4])
    members = np.flatnonzero(found.labels == label) + 1
    parts = [explain(model, photo, detection=int(i), layers=[1, 4]).maps for i in members]
    # Floating-point sums of another order.
    np.testing.assert_allclose(of_class.maps, sum(parts), atol=1e-4 * np.abs(parts).max())
    assert not np.allclose(first.maps, second.maps)
    with pytest.raises(ImageError, match=f'only {len(found.scores)} detections'):
        explain(model, photo, detection=len(found.scores) + 1)
    absent = next(i for i in range(80) if i not in found.labels)
    with pytest.raises(ImageError, match='was found in it'):
        explain(model, photo, label=absent)


def test_windows_have_no_map(photo):
    cfg = tiny.recipe('mask_rcnn', 16)
    set_windows(cfg, 64, 16)
    model = CheckpointPredictor(cfg, tiny.build(cfg))
    with pytest.raises(ImageError, match='more than one window'):
        explain(model, photo, detection=1)


def test_a_class_of_a_segmentor(photo):
    model = predictor('sem_fpn')
    label = int(np.bincount(model(photo).labels.ravel()).argmax())
    found = explain(model, photo, label=label)
    assert found.maps.shape[0] == 4 and found.maps.any()
    assert f'class {model.classes[label]}' in found.title
