"""``xcit-mm init``: finds a user's data, and writes a config that trains on it."""

import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, PARAM_SCHEDULERS, init_default_scope
from mmseg.datasets import ADE20KDataset

from xcit_mm.configs import bit_depth
from xcit_mm.datasets.find import find_coco
from xcit_mm.datasets.shapes import CLASSES
from xcit_mm.engine.config import load_config
from xcit_mm.engine.pace import Pace
from xcit_mm.inference.predictors import load_predictor
from xcit_mm.starter import Choice, schedule, within_minutes
from xcit_mm.weights import read_checkpoint
from xcit_mm_runtime import read_image
from xcit_mm_runtime.coco import read_coco

from ..datasets.own_data import (
    write_coco,
    write_flat,
    write_label,
    write_labels,
    write_values,
    write_voc,
    write_yolo,
)
from ..tiny import call, shrink

# name -> task, how the folder is written, further arguments, and the number of classes
FOLDERS = {
    'voc': ('detection', write_voc, [], 5),
    'yolo': ('detection', lambda s, r: write_yolo(s, r, polygons=True), [], 5),
    'coco': ('detection', write_coco, [], 5),
    'labels': ('segmentation', write_labels, [], 6),
    'flat': ('segmentation', write_flat, ['--classes-from', 1, '--classes', 'ground', *CLASSES], 6),
}


def init_labels(*options):
    """The exit status of the command for the labels in data/."""
    return call('init', 'segmentation', '--data', 'data', '--scratch', '--force', *options)


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def known_pace(request, monkeypatch):
    """Let only the tests measure that are about it: an iteration takes seconds."""
    if 'measured' not in request.node.name:
        monkeypatch.setattr('xcit_mm.engine.pace.measure_pace', lambda *_: Pace(1.0, 0.1, 2.0))


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=[pytest.mark.long] * (n in ('coco', 'flat'))) for n in FOLDERS],
)
def test_the_written_config_trains(name, small_shapes, tmp_path, capsys):
    task, write, options, count = FOLDERS[name]
    write(small_shapes, tmp_path / name)
    assert call('init', task, '--data', name, '--scratch', *options) == 0
    assert f'xcit-mm train {name}.py' in capsys.readouterr().out
    assert all(len(line) <= 100 for line in Path(f'{name}.py').read_text().splitlines())
    assert call('check', f'{name}.py') == 0
    write_tiny(f'{name}.py', 'tiny.py')
    assert call('train', 'tiny.py', '--work-dir', 'work') == 0
    # The metric that chooses the best checkpoint exists.
    (best,) = Path('work').glob('best_*.pth')
    saved = read_checkpoint(best)['state_dict']
    head = 'roi_head.bbox_head.fc_cls' if task == 'detection' else 'decode_head.conv_seg'
    assert len(saved[f'{head}.weight']) == count + (task == 'detection')
    has_masks = any(key.startswith('roi_head.mask_head') for key in saved)
    assert has_masks == (name in ('yolo', 'coco'))


def write_tiny(config, out):
    """The same config with a tiny model and two steps."""
    cfg = Config.fromfile(config)
    shrink(cfg.model)
    if cfg.default_scope == 'mmdet':
        cfg.train_dataloader.dataset.indices = 2 * cfg.train_dataloader.batch_size
        cfg.train_cfg.update(max_epochs=1, val_interval=1)
        cfg.model.test_cfg.rpn.max_per_img = cfg.model.test_cfg.rcnn.max_per_img = 10
    else:
        cfg.train_cfg.update(max_iters=2, val_interval=2)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[loader].update(num_workers=0, persistent_workers=False)
    cfg.default_hooks.checkpoint.save_optimizer = False
    Path(out).write_text(cfg.pretty_text)


def test_objects_without_masks_are_counted(small_shapes, tmp_path, capsys):
    write_coco(small_shapes, tmp_path / 'data')
    path = tmp_path / 'data/result.json'
    content = json.loads(path.read_text())
    del content['annotations'][3]['segmentation']
    path.write_text(json.dumps(content))
    assert call('init', 'detection', '--data', 'data', '--scratch') == 0
    total = sum(not one['iscrowd'] for one in content['annotations'])
    assert f'1 of {total} objects have no mask' in capsys.readouterr().out
    assert 'Faster R-CNN' in Path('data.py').read_text()


def test_names_of_classes_may_have_spaces(tmp_path):
    """ADE20k's names, which take more than one line."""
    names = list(ADE20KDataset.METAINFO['classes'])
    write_values(tmp_path / 'data', [0, 1, 149])
    assert init_labels('--classes', *names) == 0
    assert list(Config.fromfile('data.py').metainfo.classes) == names
    assert all(len(line) <= 100 for line in Path('data.py').read_text().splitlines())


def test_a_config_that_does_not_work_gets_no_name(tmp_path, capsys):
    """mmengine replaces what is in double braces by a variable of the environment."""
    write_values(tmp_path / 'data', [0, 1])
    assert init_labels('--classes', 'road', '{{$LANE:}}') == 2
    error = capsys.readouterr().err
    assert 'The config data.py cannot be used' in error and len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ['data']


def test_a_segmentor_can_be_trained_as_short_as_wanted(tmp_path):
    write_values(tmp_path / 'data', [0, 1])
    for options, iterations in (([], 5), (['--epochs', 1], None)):
        assert init_labels(*options) == 0
        text = Path('data.py').read_text()
        if iterations:
            text = re.sub('max_iters = .*', f'max_iters = {iterations}', text)
        Path('short.py').write_text(text)
        cfg = Config.fromfile('short.py')
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0)
        for scheduler in cfg.param_scheduler:
            PARAM_SCHEDULERS.build({**scheduler, 'optimizer': optimizer})
        assert cfg.param_scheduler[1].end == cfg.train_cfg.max_iters


def test_images_of_any_size_are_used_if_it_is_known(small_shapes, tmp_path, capsys):
    write_coco(small_shapes, tmp_path / 'data')
    assert call('init', 'detection', '--data', 'data', '--scratch') == 0
    # mmdet's own limit is 32 pixels.
    assert Config.fromfile('data.py').train_dataloader.dataset.filter_cfg.min_size == 1
    for path in (tmp_path / 'data').rglob('*.json'):
        content = json.loads(path.read_text())
        for image in content['images']:
            del image['width']
        path.write_text(json.dumps(content))
    assert call('init', 'detection', '--data', 'data', '--scratch', '--force') == 2
    assert 'do not tell the size of any image' in capsys.readouterr().err


def test_a_config_is_not_overwritten(tmp_path, capsys):
    write_values(tmp_path / 'data', [0, 1])
    Path('data.py').write_text('mine = True')
    words = ['segmentation', '--data', 'data', '--scratch']
    assert call('init', *words) == 2 and '--force' in capsys.readouterr().err
    assert Path('data.py').read_text() == 'mine = True'
    assert call('init', *words, '--out', 'other.py') == 0
    assert call('init', *words, '--force') == 0 and 'LabelFolder' in Path('data.py').read_text()
    assert call('init', *words, '--out', 'config') == 2 and 'end in .py' in capsys.readouterr().err


def test_converted_files_go_elsewhere_if_asked(small_shapes, tmp_path):
    """Then the paths of the config are absolute, and the data is not touched."""
    write_voc(small_shapes, tmp_path / 'voc')
    before = sorted((tmp_path / 'voc').rglob('*'))
    words = ['detection', '--data', 'voc', '--scratch', '--coco-dir', 'converted']
    assert call('init', *words) == 0
    assert sorted((tmp_path / 'voc').rglob('*')) == before
    cfg = Config.fromfile('voc.py')
    assert cfg.train_dataloader.dataset.ann_file == str(tmp_path / 'converted/train.json')
    assert cfg.val_evaluator.ann_file == str(tmp_path / 'converted/val.json')
    # A second time, what was converted is used.
    assert call('init', *words, '--force') == 0


def test_errors_in_the_data_are_reported_and_the_config_is_written(small_shapes, tmp_path, capsys):
    write_voc(small_shapes, tmp_path / 'voc')
    (tmp_path / 'voc/Annotations/train_000000000001.xml').write_text('<annotation>')
    assert call('init', 'detection', '--data', 'voc', '--scratch') == 1
    assert 'left out: annotations unreadable' in capsys.readouterr().out
    write_labels(small_shapes, tmp_path / 'data')
    next((tmp_path / 'data/labels/train').iterdir()).unlink()
    assert init_labels() == 1
    assert 'label: missing' in capsys.readouterr().out and Path('data.py').is_file()


def test_names_of_files_may_have_spaces_capitals_and_any_letters(small_shapes, tmp_path, capsys):
    source = write_yolo(small_shapes, tmp_path / 'source', description=False)
    folder = tmp_path / 'my data'
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix in ('.jpg', '.txt') and path.stem != 'classes':
            suffix = path.suffix.replace('jpg', 'JPG')
            shutil.copy(path, folder / f'Straße {path.stem}{suffix}')
    words = ['detection', '--data', 'my data', '--scratch', '--classes', *CLASSES]
    assert call('init', *words) == 0
    printed = capsys.readouterr().out
    assert "xcit-mm infer 'my data/Straße " in printed and 'are used' not in printed
    # A second time, the converted files are used, which may be out of date.
    assert call('init', *words, '--force') == 0
    assert "xcit-mm convert-data 'my data' --force" in capsys.readouterr().out


@pytest.mark.parametrize('write', [write_coco, write_voc])
def test_classes_have_the_promised_order_and_their_own_objects(
    write, small_shapes, tmp_path, capsys
):
    """That of --classes if annotations are converted, and that of the file for COCO."""
    write(small_shapes, tmp_path / 'data')
    names = ['star', 'disc', 'arc', 'triangle', 'bar']
    words = ['detection', '--data', 'data', '--scratch', '--force', '--classes']
    expected = list(CLASSES) if write is write_coco else names
    # The second time, what was converted is used.
    for asked in [names] if write is write_coco else [names, names[::-1]]:
        assert call('init', *words, *asked) == 0
        printed = capsys.readouterr().out
        assert ('keep the order of the annotation file' in printed) == (asked != expected)
        cfg = load_config('data.py')
        init_default_scope('mmdet')
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
        assert list(dataset.metainfo['classes']) == expected
        ids = {one['name']: one['id'] for one in read_coco(dataset.ann_file)['categories']}
        assert dataset.cat2label == {ids[name]: i for i, name in enumerate(expected)}


def test_labels_have_the_names_in_the_order_of_their_numbers(tmp_path):
    write_values(tmp_path / 'data', [1, 2, 3])
    assert init_labels('--classes', 'c', 'a', 'b') == 0
    cfg = load_config('data.py')
    assert list(cfg.metainfo.classes) == ['c', 'a', 'b']
    init_default_scope('mmseg')
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    labels = cv2.imread(dataset.get_data_info(0)['seg_map_path'], cv2.IMREAD_UNCHANGED)
    loaded = dataset[0]['data_samples'].gt_sem_seg.data[0].numpy()
    assert (loaded == labels - 1).all()


@pytest.mark.parametrize(
    'values, options, classes, void',
    [
        ([0, 1, 2], [], ['class_0', 'class_1', 'class_2'], [255]),
        ([0, 1, 255], [], ['class_0', 'class_1'], [255]),
        ([0, 1, 2], ['--void', 2], ['class_0', 'class_1'], [2, 255]),
        ([0, 1, 2], ['--classes-from', 1], ['class_1', 'class_2'], [255]),
        ([0, 1], ['--classes', 'a', 'b', 'c'], ['a', 'b', 'c'], [255]),
        ([1, 2, 255], [], ['class_1', 'class_2'], [255]),
        ([1, 2], ['--classes', 'a', 'b', 'c'], ['a', 'b', 'c'], [255]),
        ([1, 2], ['--classes-from', 0], ['class_0', 'class_1', 'class_2'], [255]),
    ],
)
def test_classes_follow_from_the_labels(values, options, classes, void, tmp_path):
    write_values(tmp_path / 'data', values)
    assert init_labels(*options) == 0
    cfg = Config.fromfile('data.py')
    assert list(cfg.metainfo.classes) == classes and cfg.void == void
    assert cfg.model.decode_head.num_classes == len(classes)
    assert cfg.reduce_zero_label == (classes[0] == 'class_1')


@pytest.mark.parametrize(
    'stored, options, values, classes, void',
    [
        ([0, 255], [], [0, 255], ['class_0', 'class_255'], []),
        ([0, 255], ['--classes', 'background', 'cell'], [0, 255], ['background', 'cell'], []),
        ([0, 80, 160, 240], ['--void', 80], [0, 160, 240], None, [80, 255]),
        ([128, 255], [], [128, 255], None, []),
    ],
)
def test_gray_levels_become_numbers(stored, options, values, classes, void, tmp_path, capsys):
    write_values(tmp_path / 'data', stored)
    assert init_labels(*options) == 0
    assert '0 is the first class' not in capsys.readouterr().out
    cfg = load_config('data.py')
    assert cfg.gray_levels == values and cfg.void == void
    assert list(cfg.metainfo.classes) == (classes or [f'class_{value}' for value in values])
    init_default_scope('mmseg')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    labels = cv2.imread(dataset.get_data_info(0)['seg_map_path'], cv2.IMREAD_UNCHANGED)
    loaded = DATASETS.build(cfg.test_dataloader.dataset)[0]['data_samples'].gt_sem_seg.data[0]
    expected = np.full(256, 255)
    expected[values] = range(len(values))
    assert np.array_equal(loaded, expected[labels])
    assert call('check', 'data.py') == 0
    write_label(next((tmp_path / 'data/labels').iterdir()), [1, *stored])
    assert call('check', 'data.py') == 1
    assert f'the file has other values than {values[0]}' in capsys.readouterr().out


def test_12_bit_images_are_scaled_alike_in_training_and_inference(tmp_path, capsys):
    from xcit_mm.deploy.metadata import Options, describe

    write_values(tmp_path / 'data', [0, 1, 2])
    values = np.arange(32 * 32, dtype=np.uint16).reshape(32, 32) * 4
    values[0, 0] = 4080
    for path in (tmp_path / 'data/images').iterdir():
        cv2.imwrite(str(path), values)
    assert init_labels() == 0
    assert 'their values fit in 12 bits, so 0 to 4095 becomes 0 to 255' in capsys.readouterr().out
    cfg = load_config('data.py')
    assert bit_depth(cfg) == 12
    init_default_scope('mmseg')
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    trained = dataset[0]['inputs']
    assert trained.max() == 255 and 0 < trained.float().mean() < 255
    shrink(cfg.model)
    predictor = load_predictor(cfg, None, 'cpu', allow_partial=True)
    path = dataset.get_data_info(0)['img_path']
    image = read_image(path, predictor.bit_depth)
    assert torch.equal(predictor.pipeline({'img': image})['inputs'], trained)
    assert describe(cfg, predictor.model, Options(), '', 'random').bit_depth == 12


def test_what_labels_do_not_say_is_assumed_aloud(tmp_path, capsys):
    """CamVid's void is its highest label, which nothing tells from a class."""
    write_values(tmp_path / 'data', [0, 0, 1, 2])
    assert init_labels() == 0
    printed, written = capsys.readouterr().out, Path('data.py').read_text()
    assert '0 is the first class, not unlabeled: 50.0 % of the pixels, in 3 of 3 files' in printed
    assert '2 is a class, not void: 25.0 % of the pixels, in 3 of 3 files' in printed
    assert 'If not: --void 2' in printed
    comments = written.replace('\n# ', ' ')
    assert 'Assumed: 2 is a class, not void' in comments
    assert 'write [2, 255] and delete the last name' in comments
    # As the comment says, two lines are to be changed.
    lines = written.replace('void = [255]', 'void = [2, 255]').replace(", 'class_2')", ')')
    Path('data.py').write_text(lines)
    assert call('check', 'data.py') == 0
    assert Config.fromfile('data.py').model.decode_head.num_classes == 2
    for told in (['--void', 2, '--classes-from', 0], ['--classes', 'a', 'b', 'c']):
        capsys.readouterr()
        assert init_labels(*told) == 0 and 'assumed' not in capsys.readouterr().out
    # A label that is in few images is a rare class, and 255 is void already.
    for values in ([0, 1, 1, 1], [0, 1, 2, 255]):
        write_values(tmp_path / 'data', values)
        write_label(tmp_path / 'data/labels/a.png', [0, 1, 2])
        assert init_labels() == 0 and '--void' not in capsys.readouterr().out


@pytest.mark.parametrize(
    'task, values, options, message',
    [
        ('segmentation', [0, 80, 160], ['--classes', 'a', 'b'], '2 names of classes for 3 labels'),
        ('segmentation', [0, 1, 2], ['--classes', 'a', 'b'], '--void 2'),
        ('segmentation', [0, 1, 2], ['--void', 0], '--classes-from 1'),
        ('segmentation', [255, 255], [], 'All labels are ignored'),
        ('segmentation', [1, 255], [], 'one class only, 1, next to what is ignored'),
        ('segmentation', np.zeros((32, 32, 3)), [], 'has colors (mode RGB)'),
        ('segmentation', None, [], 'Looked for images in images/'),
        ('detection', None, [], 'Found 1 files with .docx'),
        ('detection', None, ['--data', 'nowhere'], 'There is no folder'),
    ],
)
def test_folders_that_cannot_be_used_are_explained(
    task, values, options, message, tmp_path, capsys
):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/notes.docx').touch()
    if values is not None:
        write_values(tmp_path / 'data', values)
    assert call('init', task, '--data', 'data', *options) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not Path('data.py').exists()


def test_weights_choose_the_network(small_shapes, tmp_path, capsys):
    write_yolo(small_shapes, tmp_path / 'yolo', polygons=True)
    words = ['detection', '--data', 'yolo', '--force']
    assert call('init', *words, '--weights', 'xcit://coco/s12/8') == 0
    cfg = Config.fromfile('yolo.py')
    assert cfg.load_from == 'xcit://coco/s12/8' and cfg.model.backbone.init_cfg is None
    assert (cfg.model.backbone.arch, cfg.model.backbone.patch_size) == ('s12', 8)
    assert call('init', *words, '--arch', 't12') == 0
    cfg = Config.fromfile('yolo.py')
    assert cfg.model.backbone.init_cfg.checkpoint == 'xcit://t12/16' and cfg.load_from is None
    for wrong, message in (
        (['--weights', 'xcit://coco/s12/8', '--arch', 'n12'], 'is for s12/8, not n12/8'),
        (['--weights', 'xcit://ade20k/sem_fpn/s12/8'], 'no model for detection'),
        (['--weights', 'xcit://s13/8'], 's13/8'),
    ):
        assert call('init', *words, *wrong) == 2
        assert message in capsys.readouterr().err


def test_schedules_are_as_long_as_asked(small_shapes, tmp_path):
    write_yolo(small_shapes, tmp_path / 'data')
    words = ['detection', '--data', 'data', '--scratch', '--force']
    # At most ten validations.
    for epochs, every in ((3, 1), (10, 1), (11, 2), (29, 3)):
        assert call('init', *words, '--epochs', epochs) == 0
        cfg, written = Config.fromfile('data.py'), Path('data.py').read_text()
        assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval) == (epochs, every)
    assert 'asked for. To train longer or less, change max_epochs' in written.replace('\n# ', ' ')
    # An epoch has 50 iterations of a second, and a validation takes 20 x 0.1 seconds.
    data = find_coco(tmp_path / 'data', tmp_path / 'data/coco')
    data.splits = {s: split._replace(total=n) for (s, split), n in
                   zip(data.splits.items(), (100, 20), strict=True)}  # fmt: skip
    plan = schedule('detection', 100, Choice('n12', 16, None, False))
    for minutes, epochs, validations, takes in (
        (10, 11, 10, 'about 9.5 min'),
        (3, 3, 3, 'about 2.6 min'),
        (0.1, 1, 1, 'about 0.9 min'),
    ):
        found = within_minutes(plan, data, minutes, Pace(1.0, 0.1, 2.0))
        assert (found.epochs, found.iterations) == (epochs, 50 * epochs)
        assert found.validations == validations and takes in found.comment
        assert ('too few for an epoch' in found.comment) == (minutes == 0.1)


def test_time_and_memory_are_measured(tmp_path, capsys):
    write_values(tmp_path / 'data', [0, 1, 2])
    assert init_labels('--epochs', 10) == 0
    pattern = r'training .* 10 iterations of \d images, about \d+\.\d minutes .* \d+\.\d GB of mem'
    assert re.search(pattern, capsys.readouterr().out)


@pytest.mark.long
def test_a_schedule_is_measured(small_shapes, tmp_path, capsys):
    write_yolo(small_shapes, tmp_path / 'data')
    words = ['detection', '--data', 'data', '--scratch', '--minutes', 1]
    assert call('init', *words) == 0
    assert 'GB of memory' in capsys.readouterr().out
    comments = Path('data.py').read_text().replace('\n# ', ' ')
    assert re.search(r'so it takes about \d\.\d minutes on that machine', comments)


def test_schedules_fit_the_number_of_images():
    scratch, tuned = Choice('n12', 16, None, False), Choice('n12', 16, 'xcit://n12/16', False)
    small, usual, large = (schedule('detection', n, tuned) for n in (1, 300, 30_000))
    assert (small.batch, small.epochs) == (1, 200)
    assert abs(usual.iterations - 150 * usual.epochs) <= 50 and 4000 < usual.iterations < 6000
    assert large.epochs == 12
    longer = schedule('detection', 300, scratch)
    assert longer.iterations > usual.iterations and longer.rate > usual.rate
    # 60 objects at a time: 5,000 images show 300,000.
    assert schedule('detection', 300, scratch, 60).epochs == round(5000 / 300)
    # Larger networks get half the rate from scratch.
    assert schedule('detection', 300, Choice('s12', 16, None, True)).rate == longer.rate / 2


def test_rare_classes_and_short_trainings_change_the_recipe_of_a_segmentor(tmp_path, capsys):
    values = np.zeros((32, 32))
    values[0], values[1, :8] = 1, 2
    write_values(tmp_path / 'data', values)
    for epochs, ratios, colors in ((10, (0.8, 1.25), False), (60, (0.5, 2.0), True)):
        assert init_labels('--epochs', epochs) == 0
        cfg = Config.fromfile('data.py')
        steps = {step.type: step for step in cfg.train_pipeline}
        assert steps['RandomResize'].ratio_range == ratios
        assert ('PhotoMetricDistortion' in steps) == colors
    # 984, 32 and 8 of 1024 pixels: only the last class has less than 2 %.
    printed = capsys.readouterr().out
    assert all(text in printed for text in ('class_0 96.1%', 'class_1 3.1%', 'class_2 0.8%'))
    assert 'cross entropy and Lovász: less than 2% of the pixels are of class_2' in printed
    assert [loss.type for loss in cfg.model.decode_head.loss_decode][1] == 'LovaszLoss'
    values[1] = 2
    write_values(tmp_path / 'data', values)
    assert init_labels() == 0
    assert Config.fromfile('data.py').model.decode_head.loss_decode.type == 'CrossEntropyLoss'


def test_a_file_that_was_split_may_change(small_shapes, tmp_path):
    """The split is made again from the user's file, with the same images in each part."""
    root = tmp_path / 'data'
    (file,) = (small_shapes / 'coco/annotations').glob('*train*.json')
    content, names = read_coco(file), []
    (root / 'images').mkdir(parents=True)
    for image in content['images']:
        (path,) = (small_shapes / 'coco').glob(f'*train*/{image["file_name"]}')
        shutil.copy(path, root / 'images')
    for box in ([1, 1, 20, 20], [2, 2, 30, 30]):
        content['annotations'][0]['bbox'] = box
        (root / 'objects.json').write_text(json.dumps(content))
        assert find_coco(root, root / 'coco') is not None
        parts = [read_coco(root / f'coco/{split}.json') for split in ('train', 'val')]
        names.append([{image['file_name'] for image in part['images']} for part in parts])
        assert box in [one['bbox'] for part in parts for one in part['annotations']]
    assert names[0] == names[1]
