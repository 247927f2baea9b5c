"""The test command: the numbers of mmdet and mmseg, and what --eval, --out and --tta do."""

import json
import pickle
import re
import runpy
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

from xcit_mm.engine import testing
from xcit_mm.errors import UserError

from ..tiny import call as call_command

TASKS = {'mask_rcnn': 'mmdet', 'sem_fpn': 'mmseg'}


def call(*arguments):
    return call_command('test', *arguments)


def call_theirs(package, monkeypatch, *arguments):
    """The script tools/test.py of mmdet or mmseg, in this process."""
    script = Path(__import__(package).__file__).parent / '.mim' / 'tools' / 'test.py'
    monkeypatch.setattr(sys, 'argv', [str(script), *map(str, arguments)])
    runpy.run_path(str(script), run_name='__main__')


def metrics_of(work_dir):
    """The metrics that mmengine writes into a run's own folder, without times."""
    files = sorted(Path(work_dir).glob('*/*.json'))
    (path,) = [f for f in files if f.parent.name != 'vis_data']
    metrics = json.loads(path.read_text())
    return {key: value for key, value in metrics.items() if key not in ('time', 'data_time')}


@pytest.mark.parametrize('head', TASKS)
def test_same_numbers_as_mmdets_and_mmsegs_own_test(head, trained, tmp_path, monkeypatch, capfd):
    config, checkpoint = trained(head)
    metrics = ['bbox', 'segm'] if head == 'mask_rcnn' else ['mIoU']
    result = tmp_path / 'metrics.json'
    status = call(
        config, checkpoint, '--eval', *metrics, '--json', result, '--work-dir', tmp_path / 'ours'
    )
    table = capfd.readouterr().out.strip().splitlines()
    assert status == 0
    call_theirs(TASKS[head], monkeypatch, config, checkpoint, '--work-dir', tmp_path / 'theirs')
    expected = metrics_of(tmp_path / 'theirs')
    assert metrics_of(tmp_path / 'ours') == expected and expected
    written = json.loads(result.read_text())
    assert {key: -1 if written[key] is None else written[key] for key in expected} == expected
    for key, value in expected.items():
        (line,) = [line for line in table if line.split()[:1] == [key]]
        assert line.endswith(' -' if value == -1 else f' {value:.4g}')
    note = 'AP counts at most 100 detections per image and class, as in COCO.'
    assert (note in table) == (head == 'mask_rcnn')
    assert any(line.startswith('metric') for line in table)
    assert f'metrics: {result}' in table[-1]


WINDOWS = """
custom_imports = dict(imports=['xcit_mm', 'xcit_mm.models.sliding_windows'])
model['type'] = 'SlidingMaskRCNN'
model['test_cfg']['windows'] = dict(size=64, overlap=16)
"""


def test_windows_are_those_of_mmdets_own_test(trained, tmp_path, monkeypatch):
    config, checkpoint = trained('mask_rcnn')
    sliding = tmp_path / 'sliding.py'
    sliding.write_text(config.read_text() + WINDOWS)
    files = {name: tmp_path / f'{name}.pkl' for name in ('theirs', 'stated', 'asked', 'whole')}
    words = ('--work-dir', tmp_path / 'work', '--out')
    call_theirs('mmdet', monkeypatch, sliding, checkpoint, *words, files['theirs'])
    assert call(sliding, checkpoint, *words, files['stated']) == 0
    options = ('--window', 64, '--overlap', 16)
    assert call(config, checkpoint, *options, *words, files['asked']) == 0
    assert call(config, checkpoint, *words, files['whole']) == 0
    boxes = {
        name: [one['pred_instances']['bboxes'] for one in pickle.loads(file.read_bytes())]
        for name, file in files.items()
    }
    for name in ('stated', 'asked'):
        for ours, theirs in zip(boxes[name], boxes['theirs'], strict=True):
            assert torch.equal(ours, theirs)
    assert any(len(a) != len(b) or (a != b).any()
               for a, b in zip(boxes['whole'], boxes['theirs'], strict=True))  # fmt: skip


# metric -> its column in the table of classes, and half of the last digit that it is rounded to
PER_CLASS = {
    'mask_rcnn': {
        'coco/bbox_mAP': ('coco/bbox_mAP', 0.0005),
        'coco/segm_mAP': ('coco/segm_mAP', 0.0005),
    },
    'sem_fpn': {'mIoU': ('IoU', 0.005), 'mAcc': ('Acc', 0.005)},
}


@pytest.mark.parametrize('head', TASKS)
def test_the_classes_in_their_order_average_to_the_metrics(head, trained, tmp_path, capfd):
    config, checkpoint = trained(head)
    capfd.readouterr()
    result = tmp_path / 'metrics.json'
    assert call(config, checkpoint, '--json', result, '--work-dir', tmp_path) == 0
    printed = capfd.readouterr().out
    written = json.loads(result.read_text())
    table = printed.split('\nclass ')[1].splitlines()
    for metric, (column, rounding) in PER_CLASS[head].items():
        values = {key: v for key, v in written.items() if key.startswith(f'{column}/')}
        names = [key.removeprefix(f'{column}/') for key in values]
        shown = [line.split('  ')[0] for line in table[1 : len(names) + 1]]
        assert shown == [name.strip() for name in names]  # ADE20k has a class 'bed '
        found = [value for value in values.values() if value is not None]
        assert found and len(found) < len(values)
        assert np.mean(found) == pytest.approx(written[metric], abs=2 * rounding)
        assert column in table[0]
    assert '+---' not in printed  # mmdet's and mmseg's own tables
    (log,) = tmp_path.glob('*/*.log')
    assert 'per class results' in log.read_text()


def test_a_detector_that_finds_nothing_among_many_objects(trained, small_data, tmp_path, capfd):
    file, result = tmp_path / 'crowded.json', tmp_path / 'metrics.json'
    content = json.loads((small_data / 'coco/annotations/instances_val2017.json').read_text())
    first = content['annotations'][0]
    content['annotations'] += [{**first, 'id': 10_000 + i} for i in range(150)]
    file.write_text(json.dumps(content))
    options = [f'test_dataloader.dataset.ann_file={file}', f'test_evaluator.ann_file={file}']
    options += ['model.test_cfg.rcnn.score_thr=1.0']
    arguments = ['--json', result, '--work-dir', tmp_path, '--cfg-options', *options]
    assert call(*trained('mask_rcnn'), *arguments) == 0
    (out, err), written = capfd.readouterr(), json.loads(result.read_text())
    for metric in ('bbox', 'segm'):
        assert written[f'coco/{metric}_mAP'] == written[f'coco/{metric}_mAP_50'] == 0
        assert re.search(rf'^coco/{metric}_mAP +0$', out, re.MULTILINE)
    objects = int(re.search(r'at most (\d+) detections per image and class', out)[1])
    assert objects > 150
    option = f'--cfg-options model.test_cfg.rcnn.max_per_img={objects}'
    assert (out + err).count(option) == 1


def test_eval_overrides_the_metrics_of_the_config(trained, tmp_path):
    arguments = ['--eval', 'mDice', 'mFscore', '--json', tmp_path / 'm.json']
    assert call(*trained('sem_fpn'), *arguments, '--work-dir', tmp_path) == 0
    assert {'mDice', 'mFscore'} <= json.loads((tmp_path / 'm.json').read_text()).keys()
    arguments = ['--eval', 'proposal_fast', '--json', tmp_path / 'p.json']
    assert call(*trained('mask_rcnn'), *arguments, '--work-dir', tmp_path) == 0
    assert any('AR@' in key for key in json.loads((tmp_path / 'p.json').read_text()))


@pytest.mark.parametrize('head', TASKS)
def test_out_show_dir_and_tta(head, trained, small_data, tmp_path, capfd, monkeypatch):
    is_detector = head == 'mask_rcnn'
    monkeypatch.chdir(tmp_path)
    out = tmp_path / ('out.pkl' if is_detector else 'out')
    status = call(
        *trained(head), '--out', out, '--show-dir', 'show',
        *([] if is_detector else ['--tta']), '--work-dir', tmp_path / 'work',
    )  # fmt: skip
    assert status == 0
    assert out.exists() and f'predictions: {out}' in capfd.readouterr().out
    if not is_detector:
        assert len(list(out.glob('*.png'))) == 2
    pictures = sorted(path for path in (tmp_path / 'show').rglob('*') if path.is_file())
    folder = 'coco/val2017' if is_detector else 'ade/images/validation'
    images = sorted((small_data / folder).iterdir())
    assert pictures == [tmp_path / 'show' / f'{image.stem}.png' for image in images]
    for image, picture in zip(images, pictures, strict=True):
        height, width = cv2.imread(str(image)).shape[:2]
        drawn = cv2.imread(str(picture))
        assert drawn.shape[0] > height and drawn.shape[1] >= 2 * width
        assert (drawn[: drawn.shape[0] - height].min(axis=(0, 2)) < 128).any()  # the titles


@pytest.mark.parametrize('head', TASKS)
def test_report(head, trained, tmp_path, capfd):
    config, checkpoint = trained(head)
    page, result = tmp_path / 'page.html', tmp_path / 'metrics.json'
    arguments = ['--report', page, '--json', result, '--score-thr', 0, '--work-dir', tmp_path]
    assert call(config, checkpoint, *arguments) == 0
    assert f'report: {page}' in capfd.readouterr().out
    text, metrics = page.read_text(), json.loads(result.read_text())
    sources = re.findall(r'(?:src|href)="(.{10})', text)
    assert sources and set(sources) == {'data:image'}  # nothing to load
    overall, *of_classes = [
        [re.findall(r'<t[dh]>(.*?)</t[dh]>', row) for row in re.findall(r'<tr>(.*?)</tr>', table)]
        for table in re.findall(r'<table>(.*?)</table>', text)
    ]
    shown = {name: '-' if value is None else f'{value:.4g}' for name, value in metrics.items()}
    assert len(overall) > 1 and all(shown[name] == value for name, value in overall[1:])
    kinds = ('coco/bbox_', 'coco/segm_') if head == 'mask_rcnn' else ('m',)
    assert len(of_classes) == len(kinds) and '<h3>Confusion matrix</h3>' in text
    for kind, (names, *rows) in zip(kinds, of_classes, strict=True):
        for column, name in list(enumerate(names))[2 if head == 'mask_rcnn' else 1 :]:
            values = [float(row[column]) for row in rows if row[column] != '-']
            average = sum(values) / len(values) if values else None
            # The average and the values are rounded.
            assert average == pytest.approx(metrics[kind + name], abs=1e-2 if kind == 'm' else 1e-3)
    if head == 'mask_rcnn':
        assert sum(int(row[1]) for row in of_classes[0][1:]) == count_objects(config)
        assert text.count('<figure>') > 2 and 'IoU of 0.5 and scores from 0.0 on' in text
    assert call(config, checkpoint, *arguments) == 2  # no overwriting


def count_objects(config):
    content = json.loads(Path(Config.fromfile(config).test_evaluator.ann_file).read_text())
    return sum(not one['iscrowd'] for one in content['annotations'])


def test_out_and_eval_work_with_a_list_of_evaluators():
    other, metric = dict(type='DumpResults', out_file_path='a.pkl'), dict(type='IoUMetric')
    cfg = Config(dict(default_scope='mmseg', model=dict(), test_evaluator=[other, metric]))
    testing.set_metrics(cfg, ['mDice'])
    testing.set_predictions(cfg, 'labels')
    kept, changed = cfg.test_evaluator
    expected = dict(iou_metrics=['mDice'], output_dir='labels', keep_results=True)
    assert kept == other and changed == metric | expected
    cfg.test_evaluator = [other]
    with pytest.raises(UserError, match='--out needs a test_evaluator of type IoUMetric'):
        testing.set_predictions(cfg, 'labels')


def test_an_image_that_is_too_small_is_named(trained, small_data, tmp_path, capfd):
    config, checkpoint = trained('sem_fpn')
    data = shutil.copytree(small_data, tmp_path / 'data')
    image, label = (
        sorted((data / 'ade' / kind / 'validation').iterdir())[0]
        for kind in ('images', 'annotations')
    )
    cv2.imwrite(str(image), np.zeros((4, 4, 3), np.uint8))
    cv2.imwrite(str(label), np.ones((4, 4), np.uint8))
    dataset = 'test_dataloader.dataset'
    options = [f'{dataset}.data_root={data}/ade', f'{dataset}.pipeline.1.scale=(4,4)']
    assert call(config, checkpoint, '--work-dir', tmp_path, '--cfg-options', *options) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert f'{image} (4x4 pixels): images must be at least one patch' in error
