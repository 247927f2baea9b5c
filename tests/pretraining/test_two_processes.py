"""Two gloo processes compute what one computes on all images, for the classifier and for DINO.

On the CPU each process has its own batch statistics, so they are fixed here.
"""

import os

import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import distributed, multiprocessing

import xcit_mm  # noqa: F401  first: timm needs what it does for torchvision

from . import test_dino as dino
from . import test_supervised as supervised

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')


def classifier_steps():
    """A step on this process's share of the batch; returns the weights."""
    images, labels = supervised.batch(7)
    model = supervised.ours(7, label_smoothing=0.1)
    model.load_state_dict(supervised.timm_xcit(7).state_dict())
    model.backbone.norm_eval = True
    model.train()
    wrapper = build_optim_wrapper(model, supervised.WRAPPER)
    if distributed.is_initialized():
        rank, count = distributed.get_rank(), distributed.get_world_size()
        images, labels = images[rank::count], labels[rank::count]
        wrapped = MMDistributedDataParallel(model, device_ids=None)
    else:
        wrapped = model
    loss, _ = model.parse_losses(wrapped(**supervised.packed(images, labels), mode='loss'))
    wrapper.update_params(loss)
    return dict(model.state_dict())


def dino_steps():
    """Two steps on this process's share of eight images; returns the weights and the center."""
    model = dino.build(norm_eval=True)
    model.train()
    wrapped, indices = model, range(8)
    if distributed.is_initialized():
        indices = indices[distributed.get_rank() :: distributed.get_world_size()]
        wrapped = MMDistributedDataParallel(model, device_ids=None)
    parameters = [p for p in model.parameters() if p.requires_grad]
    wrapper = OptimWrapper(torch.optim.AdamW(parameters, lr=1e-3, eps=1e-4))
    data = dino.Crops()
    for _ in range(2):  # the second step uses the center of the first
        inputs = dict(
            global_crops=[data.large[i] for i in indices],
            local_crops=[data.small[i] for i in indices],
        )
        loss, _ = model.parse_losses(wrapped(inputs=inputs, mode='loss'))
        wrapper.update_params(loss)
        model.move_teacher(0.9)
    return dict(model.state_dict())


STEPS = {'classifier': classifier_steps, 'dino': dino_steps}


def work(rank, port, path):
    os.environ.update(
        MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE='2'
    )
    torch.set_num_threads(1)
    distributed.init_process_group('gloo')
    results = {name: steps() for name, steps in STEPS.items()}
    if rank == 0:
        torch.save(results, path)
    distributed.destroy_process_group()


@pytest.mark.long
def test_two_processes_equal_one(free_port, tmp_path):
    path = tmp_path / 'results.pth'
    multiprocessing.spawn(work, (free_port, path), nprocs=2)
    results = torch.load(path, weights_only=True)
    assert results['dino']['center'].abs().max() > 0
    for name, steps in STEPS.items():
        for key, tensor in steps().items():
            assert torch.allclose(results[name][key], tensor, rtol=1e-5, atol=1e-9), (name, key)
