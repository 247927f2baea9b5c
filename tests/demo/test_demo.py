"""The demo from its command to its page, as a newcomer sees it."""

import base64
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import cv2
import matplotlib
import numpy as np
import pytest

from xcit_mm.demo import page
from xcit_mm.demo.demo import run_demo
from xcit_mm.errors import UserError

from ..engine.runs import saved_step, wait_for

ROOT = Path(__file__).parents[2]


def demo(*arguments, **options):
    command = [sys.executable, '-m', 'xcit_mm_cli', 'demo', *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


@pytest.mark.long
def test_an_interrupted_demo_resumes_and_a_finished_one_does_nothing(tmp_path):
    """The quick demo, far from the repository, killed while it trained, and rerun twice."""
    out_dir = tmp_path / 'work_dirs' / 'demo_quick'
    first = demo('--quick', cwd=tmp_path, start_new_session=True)
    assert wait_for(lambda: saved_step(out_dir / 'detector') > 0, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert not (out_dir / 'index.html').exists()
    outputs = []
    for _ in range(2):
        run = demo('--quick', cwd=tmp_path)
        outputs.append(run.communicate(timeout=900)[0])
        assert run.returncode == 0, outputs[-1][-3000:]
    assert re.search(r'resumed after [1-9]\d* iterations', outputs[0])
    assert outputs[1].count('already done') == 6 and 'Iter(train)' not in outputs[1]
    assert 'box mAP' in outputs[1] and 'index.html' in outputs[1].splitlines()[-1]
    check_page(out_dir, 'xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py')


def check_page(out_dir, config):
    text = (out_dir / 'index.html').read_text()
    for name, key, digits in (
        ('detector', 'coco/bbox_mAP', 3),
        ('detector', 'coco/segm_mAP', 3),
        ('segmentor', 'mIoU', 1),  # in percent
    ):
        value = json.loads((out_dir / name / 'metrics.json').read_text())[key]
        assert f'data-metric="{key}">{value:.{digits}f}</b>' in text
    assert 'http://' not in text and f'xcit-mm train {config}' in text
    images = re.findall(r'src="data:image/(png|svg\+xml);base64,([^"]+)"', text)
    assert len(images) == text.count('<img ') == 20
    for kind, content in images:
        data = np.frombuffer(base64.b64decode(content), np.uint8)
        if kind == 'png':
            assert cv2.imdecode(data, cv2.IMREAD_COLOR).std() > 5
        else:
            assert ElementTree.fromstring(data.tobytes()).tag.endswith('svg')


def test_an_interrupted_demo_keeps_its_seed(tmp_path, monkeypatch):
    class Interrupted(Exception):
        """Not KeyboardInterrupt, which would end the tests too if it escaped."""

    def interrupt(step, seconds):
        raise Interrupted

    monkeypatch.setattr('xcit_mm.demo.demo.run_step', interrupt)
    for _ in range(2):
        with pytest.raises(Interrupted):
            run_demo(tmp_path, seed=3, quick=True)
    with pytest.raises(UserError, match='with seed 3, not 4'):
        run_demo(tmp_path, seed=4, quick=True)


def test_curves_are_drawn_whatever_the_backend_which_stays():
    before = matplotlib.get_backend()
    try:
        matplotlib.use('pdf')
        importlib.reload(page)
        drawn = page.plot_curves({1: 2.0, 2: 1.0}, {'m': {2: 30.0}}, {'m': 'metric'})
        assert matplotlib.get_backend() == 'pdf'
    finally:
        matplotlib.use(before)
    assert drawn.startswith(b'<?xml') and b'<svg' in drawn
