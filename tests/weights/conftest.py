import pytest
from mmengine.runner import CheckpointLoader

from xcit_mm.weights import use_strict_reader


@pytest.fixture
def strict_reader(monkeypatch):
    """mmengine reads strictly in these tests, and as before after them."""
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
    use_strict_reader()
