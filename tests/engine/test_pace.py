"""The pace of a training is measured with its own iterations."""

import sys

import pytest
import torch
from mmdet.models import MaskRCNN

from xcit_mm.engine import pace
from xcit_mm.engine.config import load_config

from ..tiny import write_config


def test_a_detector_and_a_segmentor_are_measured(small_data, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, 'STEPS', 2)
    for task in ('det', 'seg'):
        cfg = load_config(str(write_config(tmp_path, task, small_data)))
        text = cfg.pretty_text
        found = pace.measure_pace(cfg)
        assert 0 < found.iteration < 60 and 0 < found.image < 60 and found.memory > 0.05
        assert cfg.pretty_text == text


@pytest.mark.long
def test_a_validation_finds_no_more_than_the_mean_number_of_objects(
    small_data, tmp_path, monkeypatch
):
    counts = []
    val_step = MaskRCNN.val_step

    def count(model, batch):
        results = val_step(model, batch)
        counts.extend(len(result.pred_instances) for result in results)
        return results

    monkeypatch.setattr(MaskRCNN, 'val_step', count)
    cfg = load_config(str(write_config(tmp_path, 'det', small_data)))
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    pace.measure_pace(cfg, 1)
    free = list(counts)
    counts.clear()
    pace.measure_pace(cfg, 1, objects=2.3)
    assert min(free) > 3 and max(counts) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_windows_does_not_tell_the_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, 'resource', None)
    assert pace._peak_memory() is None
