import pytest

from xcit_mm.weights import use_strict_reader


@pytest.fixture
def strict_reader(separate_runs):
    """Let mmengine read strictly during a test."""
    use_strict_reader()
