"""The DINO step that is measured is the same on timm's XCiT and on ours."""

import pytest

from dev.benchmark.worker import measure_agreement

pytest.importorskip('timm')


def test_loss_and_gradients_are_those_on_timms_network():
    pair = [dict(name=name, arch='n12') for name in ('timm', 'ours')]
    job = dict(mode='dino', candidates=pair, size=[64, 64], batch=2, device='cpu')
    apart = measure_agreement(job)
    # Rounding: 1.2e-7 per operation, over some hundred operations one after the other.
    assert apart['loss'] < 1e-5 and apart['gradients'] < 1e-4
