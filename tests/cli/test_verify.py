"""Published weights next to the paper's results: the data, the test command and verify."""

import json
import re

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.compat import revert_sync_bn
from xcit_mm.engine.config import load_config
from xcit_mm.models import XCiTClassifier
from xcit_mm.paper import paper_tests, paper_tests_of
from xcit_mm.verify import choose_tests
from xcit_mm.weights import published, resolve_short_name
from xcit_mm.weights.sources import cached_path

from ..tiny import ROOT, call

pytest.importorskip('timm')

# Results of the paper, one of each table: weights, metric of the test -> value in its units
SAMPLES = [
    ('coco/s12/8', 'coco/bbox_mAP', 0.470),
    ('coco/m24/16', 'coco/segm_mAP_75', 0.449),
    ('ade20k/sem_fpn/s24/8', 'mIoU', 47.1),
    ('ade20k/upernet/s24/8', 'mIoU', 48.1),
    ('n12/16/224', 'accuracy/top1', 69.9),
    ('l24/8/384_dist', 'accuracy/top1', 86.0),
    ('m24/16/384_dist', 'imagenet_v2/top1', 75.1),
    ('dino/m24/8', 'accuracy/knn', 77.9),
    ('dino/s12/16', 'accuracy/top1', 77.8),
]


def test_every_published_file_has_its_results_and_configs():
    tests = paper_tests()
    counts = {name: len(choose_tests(name)) for name in ('coco', 'ade20k', 'imagenet', 'dino')}
    assert counts == {'coco': 8, 'ade20k': 16, 'imagenet': 42 + 12, 'dino': 8}
    assert {test.weights for test in tests} == set(published())
    chosen = [test.weights for test in choose_tests('imagenet', ['xcit://n12/16/224', 's12/8'])]
    s12 = [f's12/8/{name}' for name in ('224', '224_dist', '384_dist', '384_dist')]
    assert chosen == ['n12/16/224', *s12]  # an exact name, and parts; twice on ImageNet-V2
    for test in tests:
        assert (ROOT / 'configs' / test.config).is_file()
        assert all(0.3 < value < 1 or 30 < value < 100 for value in test.metrics.values())
    for weights, metric, value in SAMPLES:
        found = [test.metrics.get(metric) for test in paper_tests_of(f'xcit://{weights}')]
        assert [number for number in found if number] == [value]
    assert paper_tests_of(published()['coco/s12/8']) == paper_tests_of('xcit://coco/s12/8')
    assert paper_tests_of('xcit://s12/8') == paper_tests_of('xcit://s12/8/384_dist')
    assert paper_tests_of('work_dirs/coco/s12/8.pth') == []


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Three classes of images, and a classifier in the place of a published one: always class 0."""
    for name in ('0', '1', '10'):
        (tmp_path / 'data' / name).mkdir(parents=True)
        image = np.full((40, 40, 3), 100, np.uint8)
        cv2.imwrite(str(tmp_path / 'data' / name / 'image.png'), image)
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    monkeypatch.setenv('https_proxy', 'http://127.0.0.1:9')  # nothing else is downloaded
    monkeypatch.chdir(tmp_path)
    model = XCiTClassifier('n12')
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.ones_(model.head.bias[:1].data)
    path = cached_path(resolve_short_name('xcit://n12/16/224'))
    path.parent.mkdir(parents=True)
    torch.save({'model': model.state_dict()}, path)
    loader = 'test_dataloader'
    return [
        f'{loader}.dataset.data_root=data', f'{loader}.dataset.data_prefix.img_path=.',
        f'{loader}.num_workers=0', f'{loader}.persistent_workers=False',
        f'{loader}.dataset.pipeline.0.input_size=32', 'check_classes=False',
    ]  # fmt: skip


def test_the_test_command_prints_the_papers_value_and_the_difference(made_up, capfd):
    config = 'xcit_mm::classification/xcit_n12_16_in1k.py'
    assert call('test', config, 'xcit://n12/16/224', '--cfg-options', *made_up) == 0
    lines = capfd.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith('accuracy/top1')]
    assert row == ['accuracy/top1', '33.33', '69.9', '-36.57']
    assert f'paper: arXiv 2106.09681, ImageNet validation, tested with {config}' in lines
    (row,) = [line.split() for line in lines if line.startswith('accuracy/top5')]
    assert row[2:] == ['-', '-']  # not in the paper


def test_verify_measures_what_is_here_and_says_what_is_not(made_up, tmp_path, capfd):
    words = ['imagenet', '--weights', 'n12/16/224', 'n12/16/224_dist', '--out', 'table.md']
    words += ['--cfg-options', *made_up]
    assert call('verify', *words) == 0
    measured, skipped = json.loads((tmp_path / 'table.json').read_text())
    assert (measured['weights'], measured['metric']) == ('xcit://n12/16/224', 'accuracy/top1')
    assert measured['measured'] == pytest.approx(100 / 3, abs=1e-3)
    assert (measured['paper'], measured['difference']) == (69.9, pytest.approx(-36.567))
    assert skipped['weights'] == 'xcit://n12/16/224_dist' and skipped['measured'] is None
    assert 'could not be downloaded' in skipped['skipped']
    text = (tmp_path / 'table.md').read_text()
    assert re.search(r'\| +33.33 \| +69.9 \| +-36.57 \|', text)
    assert 'could not be downloaded' in text and 'xcit://n12/16/224_dist.' in text
    assert '1 of 2 results measured' in capfd.readouterr().out
    assert call('verify', *words) == 2 and '--force' in capfd.readouterr().err


@pytest.mark.long
def test_verify_reports_a_test_that_failed(made_up, tmp_path, capfd):
    (tmp_path / 'table.md').touch()
    words = ['imagenet', '--weights', 'n12/16/224', 'n12/16/224_dist', '--out', 'table.md']
    words += ['--force', '--cfg-options', *made_up[:-1]]  # three classes, and not 1,000
    assert call('verify', *words) == 1
    assert '0 of 2 results measured, 1 failed' in capfd.readouterr().out


def test_verify_names_missing_data_and_unknown_weights(made_up, tmp_path, capfd):
    assert call('verify', 'imagenet', '--weights', 'n12/16/224') == 2
    rows = json.loads((tmp_path / 'work_dirs/verify/imagenet.json').read_text())
    assert all('data/imagenet does not exist' in row['skipped'] for row in rows)
    capfd.readouterr()
    assert call('verify', 'dino', '--weights', 'n12') == 2
    assert 'dino/s12/16, dino/s12/8' in capfd.readouterr().err
    with pytest.raises(SystemExit):
        call('verify', 'coco', '--out', 'table.txt')


@pytest.mark.long
@pytest.mark.parametrize(
    'benchmark, weights, config, root',
    [
        ('coco', 'coco/t12/16', 'detection/mask_rcnn_xcit_t12_16_3x.py', 'coco/'),
        ('ade20k', 'sem_fpn/t12/16', 'segmentation/sem_fpn_xcit_t12_16_80k.py', 'ade'),
    ],
)
def test_verify_detectors_and_segmentors(
    benchmark, weights, config, root, made_up, small_data, tmp_path
):
    """Random weights find nothing: what is measured is far below the paper."""
    (test,) = choose_tests(benchmark, [weights])
    cfg = load_config(f'xcit_mm::{config}')
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    path = cached_path(published()[test.weights])
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict()}, path)
    options = [f'test_dataloader.dataset.data_root={small_data}/{root}']
    options += ['test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False']
    options += ['test_dataloader.dataset.pipeline.1.scale=(160,96)']
    if benchmark == 'coco':
        file = f'{small_data}/coco/annotations/instances_val2017.json'
        options += [f'test_evaluator.ann_file={file}']
    words = ['--weights', weights, '--out', 'table.md', '--cfg-options', *options]
    assert call('verify', benchmark, *words) == 0
    rows = json.loads((tmp_path / 'table.json').read_text())
    assert len(rows) == len(test.metrics)
    for row in rows:
        paper = test.metrics[row['metric']] * (100 if benchmark == 'coco' else 1)
        assert row['paper'] == pytest.approx(paper) and 0 <= row['measured'] < 10
        assert row['difference'] == pytest.approx(row['measured'] - paper, abs=1e-3)
