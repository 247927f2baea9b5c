"""The pace of a training is measured with its own iterations."""

import sys

import pytest
import torch

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


@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_windows_does_not_tell_the_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, 'resource', None)
    assert pace._peak_memory() is None
