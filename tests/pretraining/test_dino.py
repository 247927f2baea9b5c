"""DINO against independent computations in double precision, and in two processes."""

import copy
import math
import os

import numpy as np
import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmengine.utils import digit_version
from torch import distributed, multiprocessing
from torch.nn import functional as F

from xcit_mm.pretraining import DINOHead, KNNAccuracy, LinearProbe, information
from xcit_mm.pretraining.hooks import clip_each_gradient, cosine, ramp

ARCH = dict(embed_dims=16, depth=1, num_heads=2)
HEAD = dict(hidden_dims=8, bottleneck_dims=6)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def reference_loss(student, teacher, center, student_temp, teacher_temp):
    """The mean over pairs of different crops of the cross-entropy, one number at a time."""
    terms = []
    for t, target in enumerate(teacher):
        for v, view in enumerate(student):
            if t == v:
                continue
            for row, other in zip(target, view, strict=True):
                p = softmax((row - center) / teacher_temp)
                terms.append(-sum(p * np.log(softmax(other / student_temp))))
    return np.mean(terms)


def test_information_tells_both_ways_to_collapse_from_learning():
    """It is ln 4 for four crops with a prototype each, and 0 if all crops get the same."""
    one, all_alike = torch.zeros(4, 4, dtype=torch.float64), torch.full((4, 4), 0.25)
    one[:, 2] = 1
    assert information(one) == 0
    assert information(all_alike) == pytest.approx(0, abs=1e-6)
    assert information(torch.eye(4, dtype=torch.float64)) == pytest.approx(math.log(4))
    p = softmax(np.random.default_rng(0).normal(size=(3, 5)))
    divergences = (p * np.log(p / p.mean(axis=0))).sum(axis=1)
    assert information(torch.from_numpy(p)) == pytest.approx(divergences.mean(), rel=1e-12)


def test_schedules_are_the_closed_forms():
    assert [cosine(0.996, 1, i, 100) for i in (0, 50)] == pytest.approx([0.996, 0.998])
    assert cosine(0.996, 1, 99, 100) == pytest.approx(1 - 0.002 * (1 + math.cos(0.99 * math.pi)))
    assert cosine(0.04, 0.4, 25, 100) == pytest.approx(0.4 - 0.18 * (1 + math.sqrt(0.5)))
    temperatures = [ramp(0.04, 0.07, epoch, 30) for epoch in range(300)]
    assert temperatures[:30] == pytest.approx(np.linspace(0.04, 0.07, 30))
    assert set(temperatures[30:]) == {0.07} and ramp(0.04, 0.05, 0, 1) == 0.05


def test_head_is_the_closed_form():
    head = DINOHead(5, 7, 6, 4).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    layers = [head.mlp[i] for i in (0, 2, 4)]
    hidden = x
    for layer in layers[:-1]:
        hidden = F.gelu(hidden @ layer.weight.T + layer.bias)
    hidden = hidden @ layers[-1].weight.T + layers[-1].bias
    hidden = hidden / hidden.norm(dim=1, keepdim=True)
    rows = head.last_layer.parametrizations.weight.original1
    rows = rows / rows.norm(dim=1, keepdim=True)
    assert torch.allclose(head(x), hidden @ rows.T, rtol=1e-10)
    lengths = head.last_layer.parametrizations.weight.original0
    assert not lengths.requires_grad
    free = DINOHead(5, norm_last_layer=False, **HEAD).last_layer.parametrizations.weight
    assert free.original0.requires_grad


def build(prototypes=12, **backbone):
    torch.manual_seed(0)
    settings = dict(type='XCiTClassifier', arch=ARCH, patch_size=8, drop_path_rate=0.0, **backbone)
    model = MODELS.build(dict(type='DINO', backbone=settings, head=dict(HEAD, out_dims=prototypes)))
    return model.double()


class Crops(torch.utils.data.Dataset):
    """Random crops of eight images, in double precision."""

    def __init__(self):
        random = torch.Generator().manual_seed(2)
        numbers = dict(generator=random, dtype=torch.float64)
        self.large = torch.randn(8, 2, 3, 24, 24, **numbers)
        self.small = torch.randn(8, 3, 3, 16, 16, **numbers)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        crops = dict(global_crops=self.large[index], local_crops=self.small[index])
        return dict(inputs=crops)


def plain_loop(model, epochs):
    """DINO as its paper describes it, on the networks of a model, without our code for it."""
    student, teacher = model.student, model.teacher
    decayed = [p for p in student.parameters() if p.requires_grad and p.ndim > 1]
    others = [p for p in student.parameters() if p.requires_grad and p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed), dict(params=others, weight_decay=0.0)], lr=1e-3, eps=1e-4
    )
    center, data, length = np.zeros(12), Crops(), 2
    total = epochs * length
    for step in range(total):
        epoch, rows = divmod(step, length)
        rows = slice(4 * rows, 4 * rows + 4)
        large, small = data.large[rows], data.small[rows]
        wave = 0.5 * (1 + math.cos(math.pi * step / total))
        optimizer.param_groups[0]['weight_decay'] = 0.4 + (0.04 - 0.4) * wave
        momentum = 1 + (0.99 - 1) * wave
        temperature = 0.04 if epoch == 0 else 0.06
        with torch.no_grad():
            features = teacher.backbone(torch.cat([large[:, 0], large[:, 1]]))
            targets = teacher.head(features)
        features = [
            student.backbone(torch.cat([large[:, 0], large[:, 1]])),
            student.backbone(torch.cat([small[:, i] for i in range(3)])),
        ]
        scores = student.head(torch.cat(features)).split(4)
        loss = 0
        for t, target in enumerate(targets.split(4)):
            probabilities = ((target - torch.from_numpy(center)) / temperature).softmax(dim=1)
            for v, view in enumerate(scores):
                if v != t:
                    loss -= (probabilities * F.log_softmax(view / 0.1, dim=1)).sum(1).mean() / 8
        center = 0.9 * center + 0.1 * targets.mean(dim=0).numpy()
        optimizer.zero_grad()
        loss.backward()
        for parameter in decayed + others:
            norm = parameter.grad.norm()
            if norm > 0.5:
                parameter.grad *= 0.5 / (norm + 1e-6)
        if epoch == 0:
            for parameter in student.head.last_layer.parameters():
                parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.copy_(momentum * old + (1 - momentum) * new)
    return center


def test_a_run_equals_a_plain_loop(tmp_path):
    """Two epochs of two steps: losses, center, clipping, frozen last layer, schedules, teacher."""
    model = build()
    model.init_weights()
    plain = copy.deepcopy(model)
    first_last_layer = plain.student.head.last_layer.weight.clone()
    center = plain_loop(plain, epochs=2)
    Runner(
        model=model,
        work_dir=str(tmp_path),
        default_scope='xcit_mm',
        train_dataloader=dict(
            dataset=Crops(), batch_size=4, sampler=dict(type='DefaultSampler', shuffle=False)
        ),
        train_cfg=dict(by_epoch=True, max_epochs=2),
        optim_wrapper=dict(
            optimizer=dict(type='AdamW', lr=1e-3, eps=1e-4, weight_decay=0.04),
            paramwise_cfg=dict(flat_decay_mult=0.0, bias_decay_mult=0.0),
        ),
        custom_hooks=[
            dict(
                type='DINOHook', momentum=0.99, teacher_temp=(0.04, 0.06), temp_warmup_epochs=2,
                clip_grad=0.5,
            )
        ],
    ).train()  # fmt: skip
    assert np.allclose(model.center.numpy(), center, rtol=1e-5, atol=1e-12)
    for name, tensor in plain.state_dict().items():
        if name != 'center':
            assert torch.allclose(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-9), name
    assert not torch.allclose(plain.student.head.last_layer.weight, first_last_layer)


@pytest.mark.skipif(
    digit_version(torch.__version__) < digit_version('2.4'), reason='fused SGD on a CPU needs it'
)
@pytest.mark.parametrize('fused', [False, True])
def test_gradients_are_clipped_by_their_unscaled_norm(fused):
    large, small = (torch.zeros(4, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([large, small], lr=1.0, fused=fused)
    optimizer.register_step_pre_hook(lambda optimizer, *_: clip_each_gradient(optimizer, 0.5))
    scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)
    scaler.scale((3 * large + 0.1 * small).sum()).backward()
    scaler.step(optimizer)
    # Norms of 6 and 0.2: only the first is clipped, to 0.5.
    torch.testing.assert_close(large.detach(), torch.full((4,), -0.25))
    torch.testing.assert_close(small.detach(), torch.full((4,), -0.1))


def steps():
    """Take two steps on this process's share of eight images; return weights and center."""
    model = build(norm_eval=True)  # on the CPU each process has its own batch statistics
    model.train()
    wrapped, indices = model, range(8)
    if distributed.is_initialized():
        indices = indices[distributed.get_rank() :: distributed.get_world_size()]
        wrapped = MMDistributedDataParallel(model, device_ids=None)
    parameters = [p for p in model.parameters() if p.requires_grad]
    wrapper = OptimWrapper(torch.optim.AdamW(parameters, lr=1e-3, eps=1e-4))
    data = Crops()
    for _ in range(2):  # the second step uses the center of the first
        inputs = dict(
            global_crops=[data.large[i] for i in indices],
            local_crops=[data.small[i] for i in indices],
        )
        loss, _ = model.parse_losses(wrapped(inputs=inputs, mode='loss'))
        wrapper.update_params(loss)
        model.update_teacher(0.9)
    return dict(model.state_dict())


def work(rank, port, path):
    os.environ.update(
        MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE='2'
    )
    torch.set_num_threads(1)
    distributed.init_process_group('gloo')
    state = steps()
    if rank == 0:
        torch.save(state, path)
    distributed.destroy_process_group()


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_two_processes_equal_one(free_port, tmp_path):
    multiprocessing.spawn(work, (free_port, tmp_path / 'state.pth'), nprocs=2)
    found = torch.load(tmp_path / 'state.pth', weights_only=True)
    assert found['center'].abs().max() > 0
    for name, tensor in steps().items():
        assert torch.allclose(found[name], tensor, rtol=1e-5, atol=1e-9), name


def test_loss_in_half_precision_is_that_of_the_rounded_scores():
    """Scores of student and teacher are bfloat16; sums over thousands of prototypes are not."""
    data, scores = Crops(), {}
    model = build(prototypes=4096).float()
    model.center.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    center = model.center.double().numpy()
    for name in ('student', 'teacher'):
        getattr(model, name).head.register_forward_hook(
            lambda _module, _inputs, output, name=name: scores.update({name: output})
        )
    views = dict(global_crops=list(data.large.float()), local_crops=list(data.small.float()))
    with torch.autocast('cpu', torch.bfloat16):
        actual = model(views, mode='loss')['loss']
    assert {each.dtype for each in scores.values()} == {torch.bfloat16}
    student, teacher = (
        each.detach().double().unflatten(0, (-1, len(data.large))).numpy()
        for each in (scores['student'], scores['teacher'])
    )
    expected = reference_loss(student, teacher, center, 0.1, model.teacher_temp)
    assert actual.item() == pytest.approx(expected, rel=1e-5)


def test_neighbors_vote_as_in_the_closed_form():
    random = np.random.default_rng(0)
    bank, queries = random.normal(size=(30, 4)), random.normal(size=(9, 4))
    labels = random.integers(0, 3, 30)
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    expected = []
    for query in queries:
        cosines = unit @ query / np.linalg.norm(query)
        votes = np.zeros(3)
        for index in np.argsort(-cosines)[:5]:
            votes[labels[index]] += math.exp(cosines[index] / 0.07)
        expected.append(votes.argmax())
    tensors = [torch.from_numpy(x) for x in (bank, labels, queries)]
    assert KNNAccuracy(k=5).predict(*tensors).tolist() == expected


def test_a_linear_probe_separates_what_a_line_separates():
    random = np.random.default_rng(0)
    bank, queries = random.normal(size=(400, 3)), random.normal(size=(100, 3))
    planes = np.array([[1.0, 2, 0], [-1, 0, 3], [0, -2, -3]])
    labels, expected = (bank @ planes.T).argmax(1), (queries @ planes.T).argmax(1)
    tensors = [torch.from_numpy(x).float() for x in (bank, queries)]
    before = torch.get_rng_state()
    with torch.no_grad():  # as in validation
        predicted = LinearProbe().predict(tensors[0], torch.from_numpy(labels), tensors[1])
    assert (predicted.numpy() == expected).mean() > 0.95
    assert torch.equal(before, torch.get_rng_state())
