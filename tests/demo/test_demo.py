"""The demo from its command to its page, as a newcomer sees it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.demo.demo import run_demo
from xcit_mm.errors import UserError
from xcit_mm_cli import test
from xcit_mm_cli.common import load_config

from ..engine.runs import saved_step, wait_for

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')


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
    check_resumed(outputs[0])
    check_finished(outputs[1])
    assert 'box mAP' in outputs[1] and 'index.html' in outputs[1].splitlines()[-1]
    check_page(out_dir, 'xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py')
    if CHROMIUM:
        check_in_browser(out_dir, tmp_path)


def check_resumed(printed):
    assert re.search(r'resumed after [1-9]\d* iterations', printed)


def check_finished(printed):
    assert printed.count('already done') == 6 and 'Iter(train)' not in printed


def check_page(out_dir, config):
    page = (out_dir / 'index.html').read_text()
    for name, key, digits in (
        ('detector', 'coco/bbox_mAP', 3),
        ('detector', 'coco/segm_mAP', 3),
        ('segmentor', 'mIoU', 1),  # in percent
    ):
        value = json.loads((out_dir / name / 'metrics.json').read_text())[key]
        assert f'data-metric="{key}">{value:.{digits}f}</b>' in page
    assert 'http://' not in page and 'src="data:image/png' in page
    assert f'xcit-mm train {config}' in page


# Appended to a copy of the page: writes what the browser sees into the document.
PROBE = """<script>addEventListener('load', () => {
  const images = [...document.images];
  document.body.dataset.images = images.length;
  document.body.dataset.broken = images.filter(i => !i.complete || !i.naturalWidth).length;
  document.body.dataset.numbers = JSON.stringify(Object.fromEntries(
    [...document.querySelectorAll('b[data-metric]')].map(e => [e.dataset.metric, e.innerText])));
});</script>"""


def check_in_browser(out_dir, tmp_path):
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


def test_an_untrained_network_scores_close_to_zero(tmp_path, monkeypatch):
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
    data = tmp_path / 'shapes'
    arguments += [
        '--cfg-options',
        f'shapes.root={data}',
        'shapes.train=1',
        'shapes.val=10',
        f'test_dataloader.dataset.data_root={data}/coco/',
        f'test_evaluator.ann_file={data}/coco/annotations/instances_val2017.json',
    ]
    assert test.main([config, str(checkpoint), *arguments]) == 0
    numbers = json.loads(metrics.read_text())
    assert numbers['coco/bbox_mAP'] < 0.01 and numbers['coco/segm_mAP'] < 0.01


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
