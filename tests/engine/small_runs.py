"""Runs of a few steps of a small network in this process; as a script, one of two processes."""

import math
import os
import sys

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn

from xcit_mm.compat import init_gloo
from xcit_mm.engine import NonFiniteHook

BAD_GRADIENT = 100.0


class Model(BaseModel):
    """Where the first input is BAD_GRADIENT, the gradient of ``extra`` alone is not a number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.extra = nn.Parameter(torch.ones(3))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        x = torch.stack(inputs)
        is_bad = (x[:, 0] == BAD_GRADIENT).any()
        extra = torch.sqrt(self.extra - self.extra).sum() if is_bad else self.extra.sum()
        loss = self.last(self.norm(self.first(x))).square().mean() + extra
        return dict(loss=loss) if mode == 'loss' else [dict(loss=loss)]


def batches(*kinds):
    """Two samples per batch: ``good``, ``nan`` in the second one, or with a bad ``gradient``."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for number, kind in enumerate(kinds):
        for half in 'ab':
            x = torch.randn(4, generator=generator)
            if kind == 'nan' and half == 'b':
                x[1] = math.nan
            if kind == 'gradient':
                x[0] = BAD_GRADIENT
            sample = BaseDataElement(metainfo=dict(img_path=f'{number}{half}.jpg'))
            samples.append(dict(inputs=x, data_samples=sample))
    return samples


def build(
    work_dir, dataset, *hooks, checkpoint=None, kind=Model, wrapper=None, epochs=1, metric=None,
    **optim,
):  # fmt: skip
    model = kind()
    optim = {'optimizer': dict(type='SGD', lr=0.01, momentum=0.9), **optim}
    sampler = dict(type='DefaultSampler', shuffle=False)
    loader = dict(dataset=dataset, batch_size=2, sampler=sampler)
    cfg = Config(dict(launcher='pytorch' if 'RANK' in os.environ else 'none'))
    init_gloo(cfg)
    validation = dict(val_dataloader=dict(loader), val_cfg={}, val_evaluator=[metric])
    return Runner(
        model,
        work_dir=str(work_dir),
        experiment_name=str(work_dir).replace('/', '_'),
        train_dataloader=loader,
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        optim_wrapper=wrapper(model) if wrapper else optim,
        default_hooks=dict(checkpoint=checkpoint, logger=None),
        custom_hooks=list(hooks),
        launcher=cfg.launcher,
        cfg=cfg,
        **(validation if metric else {}),
    )


def run(*arguments, **kwargs):
    runner = build(*arguments, **kwargs)
    runner.train()
    return runner


def work(work_dir, kinds, accumulated):
    """Train in one of two processes; the batches of the second one are given by their kinds."""
    kinds = kinds.split()
    good, bad = batches(*['good'] * len(kinds)), batches(*kinds)
    samples = [sample for pair in zip(good, bad, strict=True) for sample in pair]
    runner = run(work_dir, samples, NonFiniteHook(2), accumulative_counts=int(accumulated))
    print('weights', sum(float(p.detach().double().sum()) for p in runner.model.parameters()))


if __name__ == '__main__':
    work(*sys.argv[1:])
