"""The control of the demo: the same training without cross-covariance attention."""

import json

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from dev.control import NEGATIVES, WITHOUT_XCA, run_control
from xcit_mm.demo.steps import SEGMENTOR
from xcit_mm.errors import UserError
from xcit_mm_cli.common import load_config


def test_the_control_compares_two_trainings(tmp_path, monkeypatch):
    scores = {'with_XCA': 60.0, 'without_XCA': 50.0}

    def done(step, seconds):
        seconds[step.name] = 1.0
        if step.result.name == 'metrics.json':
            step.result.parent.mkdir(parents=True)
            step.result.write_text(json.dumps({'mIoU': scores[step.result.parts[-3]]}))
        is_control = 'model.backbone.ablation=without_xca' in step.command
        assert is_control == ('without XCA' in step.name) and 'shapes.negatives=0.5' in step.command

    monkeypatch.setattr('dev.control.run_step', done)
    expected = {'mIoU with XCA': 60.0, 'mIoU without XCA': 50.0}
    assert run_control(tmp_path, seed=0) == expected
    record = json.loads((tmp_path / 'control.json').read_text())
    assert record['metrics'] == expected and len(record['seconds']) == 4
    with pytest.raises(UserError, match='with seed 0, not 1'):
        run_control(tmp_path, seed=1)


def test_the_control_removes_attention_and_adds_negatives():
    cfg = load_config(SEGMENTOR.config, [*NEGATIVES, *WITHOUT_XCA])
    assert cfg.shapes.negatives == 0.5
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert loader.dataset.data_root == f'{cfg.shapes.root}/ade'
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.norm_cfg.type = 'BN'
    backbone = MODELS.build(cfg.model).backbone
    backbone.init_weights()
    for layer in backbone.layers:
        assert not layer.xca(torch.ones(1, 4, backbone.embed_dims)).any()
        assert layer.gamma2.any() and layer.gamma2.requires_grad
