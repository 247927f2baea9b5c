"""A step of supervised training has the numbers of a plain loop on timm's XCiT and losses."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from mmengine.registry import METRICS, MODELS
from mmengine.structures import BaseDataElement
from torch.nn import functional as F

timm = pytest.importorskip('timm')

ARCH = dict(embed_dims=32, depth=2, num_heads=4)
# Adam divides gradients by their own size, which makes a step of any rounding error. A larger eps
# keeps steps in proportion.
EPS = 1e-4
WRAPPER = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, eps=EPS),
    paramwise_cfg=dict(
        flat_decay_mult=0.0, bias_decay_mult=0.0, custom_keys=dict(cls_token=dict(decay_mult=0.0))
    ),
)
MIXUP = dict(mixup_alpha=0.8, cutmix_alpha=1.0)


def timm_xcit(num_classes):
    from timm.models.xcit import Xcit

    torch.manual_seed(0)
    model = Xcit(
        img_size=32, patch_size=16, embed_dim=32, depth=2, num_heads=4, num_classes=num_classes,
        eta=1.0, tokens_norm=True,
    )  # fmt: skip
    return model.double()


def ours(num_classes, **settings):
    backbone = dict(
        type='XCiTClassifier', arch=ARCH, patch_size=16, num_classes=num_classes, drop_path_rate=0.0
    )
    model = MODELS.build(dict(type='ImageClassifier', backbone=backbone, **settings))
    return model.double()


def batch(num_classes, count=8):
    random = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 32, 48, generator=random, dtype=torch.float64)
    labels = torch.randint(num_classes, (count,), generator=random)
    return images, labels


def packed(images, labels):
    samples = [BaseDataElement(gt_label=label) for label in labels]
    return dict(inputs=images, data_samples=samples)


def step(model, images, labels):
    """Take one step as mmengine's runner does; return the loss."""
    wrapper = build_optim_wrapper(model, WRAPPER)
    loss, _ = model.parse_losses(model(**packed(images.clone(), labels), mode='loss'))
    wrapper.update_params(loss)
    return loss.detach()


def reference_step(model, images, labels, loss_of):
    """Take one step of a plain loop on timm's network; return the loss."""
    from timm.optim import param_groups_weight_decay

    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=['cls_token'])
    optimizer = torch.optim.AdamW(groups, lr=1e-3, eps=EPS)
    loss = loss_of(model, images.clone(), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def check_steps(loss_of, num_classes=7, seeds=(0,), **settings):
    """Check that steps of ours have the loss and the result of a plain loop; return the model."""
    images, labels = batch(num_classes)
    reference, model = timm_xcit(num_classes), ours(num_classes, **settings)
    model.load_state_dict(reference.state_dict())  # the names of a classifier alone
    if settings.get('teacher'):
        model.teacher.double()
    for seed in seeds:
        np.random.seed(seed)
        expected = reference_step(reference, images, labels, loss_of)
        np.random.seed(seed)
        assert torch.allclose(step(model, images, labels), expected, rtol=1e-5, atol=0)
        moved = ours(num_classes)
        moved.load_state_dict(reference.state_dict())
        for (name, one), two in zip(moved.named_parameters(), model.parameters(), strict=True):
            assert (one - two).norm() <= 1e-5 * one.norm() + 1e-12, name
        for (name, one), two in zip(moved.named_buffers(), model.buffers(), strict=True):
            assert torch.allclose(one, two, rtol=1e-5), name
    return model


def smoothed(logits, labels):
    return timm.loss.LabelSmoothingCrossEntropy(0.1)(logits, labels)


def test_a_step_equals_a_plain_loop_on_timm():
    def loss_of(network, images, labels):
        settings = dict(prob=1.0, switch_prob=0.5, label_smoothing=0.1, num_classes=7)
        images, targets = timm.data.Mixup(**MIXUP, **settings)(images, labels)
        return timm.loss.SoftTargetCrossEntropy()(network(images), targets)

    check_steps(loss_of, seeds=(0, 3), mixup=MIXUP, label_smoothing=0.1)  # mixup, cutmix


def test_a_step_with_smoothing_alone_equals_timms():
    check_steps(lambda network, x, y: smoothed(network(x), y), label_smoothing=0.1)


@pytest.mark.parametrize('temperature', [None, 1.0, 3.0])
def test_a_step_of_distillation_equals_a_plain_loop(temperature, tmp_path):
    torch.manual_seed(5)
    plain = timm.create_model('test_resnet').eval()
    torch.save(plain.state_dict(), tmp_path / 'teacher.pth')
    plain.double()

    def loss_of(network, images, labels):
        logits = network(images)
        with torch.no_grad():
            scores = plain(images)
        if temperature is None:
            distilled = F.cross_entropy(logits, scores.argmax(dim=1))
        else:  # the mean over images and classes of p (log p - log q), as in DeiT's code
            p, q = (scores / temperature).softmax(1), (logits / temperature).softmax(1)
            distilled = temperature**2 * (p * (p.log() - q.log())).mean()
        return 0.75 * smoothed(logits, labels) + 0.25 * distilled

    teacher = dict(name='test_resnet', checkpoint=str(tmp_path / 'teacher.pth'), weight=0.25)
    if temperature is not None:
        teacher['temperature'] = temperature
    model = check_steps(loss_of, num_classes=1000, label_smoothing=0.1, teacher=teacher)
    assert not any('teacher' in name for name in model.state_dict())
    assert not any(p.requires_grad for p in model.teacher.parameters())
    assert deepcopy(model).teacher is model.teacher  # an average of the weights needs no copy


def test_multi_scale_batches_have_the_size_of_their_iteration():
    preprocessor = MODELS.build(dict(type='MultiScalePreprocessor', sizes=[16, 32]))
    hub = MessageHub.get_current_instance()
    # Bicubic weights sum to 1: a constant image stays one.
    data = dict(inputs=[torch.full((3, 32, 32), 2.0)] * 2)
    found = []
    for iteration in (*range(20), *range(20)):
        hub.update_info('iter', iteration)
        images = preprocessor(data, training=True)['inputs']
        assert torch.allclose(images, torch.tensor(2.0))
        found.append(tuple(images.shape))
        assert preprocessor(data)['inputs'].shape == (2, 3, 32, 32)  # for tests, as it is
    assert found[:20] == found[20:]
    assert set(found) == {(2, 3, 16, 16), (2, 3, 32, 32)}
    with pytest.raises(ValueError, match='sizes must be'):
        MODELS.build(dict(type='MultiScalePreprocessor', sizes=[]))


def test_scores_that_say_nothing_are_not_correct():
    metric = METRICS.build(dict(type='TopKAccuracy'))
    kinds = [torch.full((10,), torch.nan), torch.zeros(10), torch.arange(10.0)]
    metric.process(None, [dict(pred_scores=scores, gt_label=9) for scores in kinds])
    assert metric.compute_metrics(metric.results) == dict(top1=100 / 3, top5=100 / 3)
