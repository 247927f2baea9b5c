"""A run of mmengine that takes no time: a linear layer, trained and validated for real."""

import uuid

import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.model import BaseModel
from mmengine.runner import Runner


class Linear(BaseModel):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, inputs, mode='tensor'):
        loss = self.linear(torch.stack(inputs)).sum()
        return dict(loss=loss) if mode == 'loss' else [loss]


class Constant(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        return dict(score=1.0)


def build(work_dir, epochs=1, kind=Runner, **settings):
    """A runner that keeps the best checkpoint and the last one."""
    data = dict(
        dataset=[dict(inputs=torch.ones(4))] * 2,
        batch_size=1,
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    checkpoint = dict(type='CheckpointHook', save_best='score', rule='greater', max_keep_ckpts=1)
    return kind(
        Linear(),
        str(work_dir),
        train_dataloader=data,
        val_dataloader=data,
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        val_cfg=dict(),
        val_evaluator=Evaluator(Constant()),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        param_scheduler=dict(type='LinearLR'),
        default_hooks=dict(checkpoint=checkpoint),
        experiment_name=uuid.uuid4().hex,
        **settings,
    )


def train(*arguments, **settings):
    runner = build(*arguments, **settings)
    runner.train()
    return runner
