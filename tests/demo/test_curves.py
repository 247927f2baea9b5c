"""The curves of the demo's page."""

import importlib

import matplotlib

from xcit_mm.demo import curves


def test_curves_are_drawn_whatever_the_backend_which_stays():
    before = matplotlib.get_backend()
    try:
        matplotlib.use('pdf')
        importlib.reload(curves)
        drawn = curves.plot_curves({1: 2.0, 2: 1.0}, {'m': {2: 30.0}}, {'m': 'metric'})
        assert matplotlib.get_backend() == 'pdf'
    finally:
        matplotlib.use(before)
    assert drawn.startswith(b'<?xml') and b'<svg' in drawn
