"""The plan holds the memory limit, or says before the work begins that it cannot."""

import resource
import shutil
from types import SimpleNamespace

import pytest

from xcit_mm.errors import UserError
from xcit_mm.large.plan import format_bytes, make_plan, memory_in_use, parse_bytes
from xcit_mm.large.store import Rows

from ..tiny import backbone
from .test_segment import make_segmentor

GB = 2**30
SCENE = (2**15, 2**15, 3)


@pytest.fixture(autouse=True)
def large_disk(monkeypatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda folder: SimpleNamespace(free=2**40))


def test_more_memory_gives_larger_pieces(tmp_path):
    model = make_segmentor('upernet')
    limits = [memory_in_use() + n * GB // 4 for n in (2, 3, 4, 16)]
    plans = [make_plan(model.backbone, SCENE, limit, tmp_path, model) for limit in limits]
    assert [plan.rows for plan in plans] == sorted(plan.rows for plan in plans)
    assert [plan.tile for plan in plans] == sorted(plan.tile for plan in plans)
    assert plans[0].rows < plans[-1].rows


def test_a_limit_that_cannot_be_held_is_refused(tmp_path):
    model = backbone()
    for folder, hint in [(tmp_path, 'Raise the limit.'), (None, 'let the tokens live in files')]:
        with pytest.raises(UserError, match='at least') as refusal:
            make_plan(model, SCENE, GB // 100, folder)
        assert hint in str(refusal.value)
    # All tokens in memory take more than a part of them.
    limit = memory_in_use() + GB // 2
    assert make_plan(model, SCENE, limit, tmp_path).on_disk
    with pytest.raises(UserError, match='for the tokens'):
        make_plan(model, SCENE, limit)


def test_a_disk_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(UserError, match=r'The disk of .* and the work needs'):
        make_plan(backbone(), (2**22, 2**22, 3), None, tmp_path / 'tokens')


def test_a_disk_that_fills_up_leaves_no_file(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limit[1]))
    try:
        with pytest.raises(OSError, match='large') as error:
            Rows((2**9, 2**9), tmp_path / 'tokens').reserve()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert error.value.filename == str(tmp_path / 'tokens')
    assert not list(tmp_path.iterdir())


def test_amounts_of_memory():
    assert parse_bytes('4GB') == parse_bytes('4 gib') == parse_bytes('4096M') == 4 * GB
    assert parse_bytes('1.5k') == 1536 and parse_bytes('12') == 12
    for text in ('', '4 apples', '-1GB', '0'):
        with pytest.raises(ValueError, match='such as 4GB'):
            parse_bytes(text)
    assert format_bytes(4 * GB) == '4 GB' and format_bytes(1500) == '1.46 KB'
