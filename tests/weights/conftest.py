import pytest
from mmengine.runner import CheckpointLoader

from xcit_mm.weights import use_strict_reader


@pytest.fixture
def strict_reader(monkeypatch):
    """Let mmengine read strictly during a test."""
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
    use_strict_reader()
