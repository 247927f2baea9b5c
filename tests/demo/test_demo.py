"""The demo from its command to its page, as a newcomer meets it."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.cli import test
from xcit_mm.cli.common import load_config
from xcit_mm.demo.run import run_demo
from xcit_mm.errors import UserError

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')


def demo(*arguments, **options):
    command = [sys.executable, '-m', 'xcit_mm_cli', 'demo', *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


@pytest.fixture(scope='module')
def quick(tmp_path_factory):
    """The quick demo, far from the repository, interrupted while it trained, and rerun twice."""
    folder = tmp_path_factory.mktemp('demo')
    out_dir = folder / 'work_dirs' / 'demo_quick'
    first = demo('--quick', cwd=folder, start_new_session=True)
    deadline = time.monotonic() + 600
    while not list((out_dir / 'detector').glob('iter_*.pth')) and time.monotonic() < deadline:
        assert first.poll() is None, first.stdout.read()[-3000:]
        time.sleep(0.2)
    subprocess.run(['pkill', '-KILL', '-s', str(first.pid)], check=True)
    first.communicate()
    assert not (out_dir / 'index.html').exists()
    outputs = []
    for _ in range(2):
        run = demo('--quick', cwd=folder)
        outputs.append(run.communicate(timeout=900)[0])
        assert run.returncode == 0, outputs[-1][-3000:]
    return out_dir, outputs


@pytest.mark.slow
def test_interrupted_demo_goes_on_and_a_finished_one_does_nothing(quick):
    _, (second, third) = quick
    assert re.search(r'resumed epoch: \d+, iter: [1-9]', second)
    assert third.count('is done already') == 6 and 'Iter(train)' not in third
    assert 'box mAP' in third and 'index.html' in third.splitlines()[-1]


@pytest.mark.slow
def test_page_has_the_numbers_of_the_metrics_files(quick):
    out_dir, _ = quick
    page = (out_dir / 'index.html').read_text()
    for name, key, scale in (
        ('detector', 'coco/bbox_mAP', 1),
        ('detector', 'coco/segm_mAP', 1),
        ('segmentor', 'mIoU', 100),
    ):
        value = json.loads((out_dir / name / 'metrics.json').read_text())[key] / scale
        assert f'data-metric="{key}">{value:.3f}</b>' in page
    assert 'http://' not in page and 'src="data:image/png' in page
    assert 'xcit-mm train xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py' in page


# Appended to a copy of the page: writes what the browser saw into the document.
PROBE = """<script>addEventListener('load', () => {
  const images = [...document.images];
  document.body.dataset.images = images.length;
  document.body.dataset.broken = images.filter(i => !i.complete || !i.naturalWidth).length;
  document.body.dataset.numbers = JSON.stringify(Object.fromEntries(
    [...document.querySelectorAll('b[data-metric]')].map(e => [e.dataset.metric, e.innerText])));
});</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='needs Chromium')
def test_page_in_a_real_browser(quick, tmp_path):
    out_dir, _ = quick
    page = tmp_path / 'index.html'
    page.write_text((out_dir / 'index.html').read_text() + PROBE)
    run = subprocess.run(
        [CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic',
         '--no-first-run', '--disable-background-networking', '--disable-component-update',
         '--disable-sync', f'--user-data-dir={tmp_path / "profile"}', '--enable-logging=stderr',
         '--virtual-time-budget=5000', '--dump-dom', page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert 'CONSOLE' not in run.stderr
    seen = dict(re.findall(r'data-(images|broken|numbers)="([^"]*)"', run.stdout))
    assert int(seen['images']) >= 20 and seen['broken'] == '0'
    numbers = json.loads(seen['numbers'].replace('&quot;', '"'))
    detector = json.loads((out_dir / 'detector' / 'metrics.json').read_text())
    assert numbers['coco/bbox_mAP'] == f'{detector["coco/bbox_mAP"]:.3f}'


@pytest.mark.slow
def test_untrained_network_scores_next_to_nothing(tmp_path, monkeypatch):
    config = 'configs/detection/mask_rcnn_xcit_n12_8_shapes.py'
    monkeypatch.chdir(ROOT)
    cfg = load_config(config)
    init_default_scope('mmdet')
    cfg.model.backbone.norm_cfg.type = 'BN'
    model = MODELS.build(cfg.model)
    model.init_weights()
    checkpoint, metrics = tmp_path / 'untrained.pth', tmp_path / 'metrics.json'
    torch.save(model.state_dict(), checkpoint)
    arguments = ['--eval', 'bbox', 'segm', '--json', str(metrics), '--work-dir', str(tmp_path)]
    assert test.main([config, str(checkpoint), *arguments]) == 0
    numbers = json.loads(metrics.read_text())
    assert numbers['coco/bbox_mAP'] < 0.01 and numbers['coco/segm_mAP'] < 0.01


def test_a_demo_that_was_begun_keeps_its_seed(tmp_path, monkeypatch):
    class Interrupted(Exception):
        """Not KeyboardInterrupt, which would end the tests as well if it got out."""

    def interrupt(step, seconds):
        raise Interrupted

    monkeypatch.setattr('xcit_mm.demo.run.run_step', interrupt)
    for _ in range(2):
        with pytest.raises(Interrupted):
            run_demo(tmp_path, seed=3, quick=True)
    with pytest.raises(UserError, match='with seed 3, not 4'):
        run_demo(tmp_path, seed=4, quick=True)
