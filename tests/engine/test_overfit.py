"""Training on a few images says whether the model can learn them."""

import json

import pytest
from mmengine.registry import DATASETS, init_default_scope

from xcit_mm.engine import overfit
from xcit_mm.engine.config import load_config

from ..tiny import call, write_config


@pytest.mark.parametrize('task', ['det', 'seg'])
def test_the_same_images_are_trained_and_tested_without_augmentation(task, small_data, tmp_path):
    cfg = load_config(str(write_config(tmp_path, task, small_data)))
    flip = dict(type='RandomFlip', prob=1.0)
    *steps, last = cfg.train_dataloader.dataset.pipeline
    cfg.train_dataloader.dataset.pipeline = [*steps, flip, last]
    cfg.model.test_cfg.windows = dict(size=64, overlap=32)
    overfit.use_few_images(cfg, 3)
    assert 'windows' not in cfg.model.test_cfg
    init_default_scope(cfg.default_scope)
    loaders = cfg.train_dataloader, cfg.val_dataloader
    trained, tested = (DATASETS.build(loader.dataset) for loader in loaders)
    assert len(tested) == 3 and len(trained) == (90 if task == 'det' else 3)
    for index in range(3):
        one, again, other = trained[index], trained[index], tested[index]
        assert (one['inputs'] == again['inputs']).all()
        assert (one['inputs'] == other['inputs']).all()
        paths = [sample['data_samples'].img_path for sample in (one, other)]
        assert paths[0] == paths[1] and 'train' in paths[0]
    # The learning rate falls until the last iteration, of epochs of any length.
    last, unit = (10 * 30 * 3, 'max_iters') if task == 'seg' else (10, 'max_epochs')
    assert cfg.param_scheduler[1]['end'] == cfg.train_cfg[unit] == last


def test_windows_are_trained_on_crops(small_data, tmp_path):
    cfg = load_config(str(write_config(tmp_path, 'det', small_data)))
    crop = dict(type='RandomCrop', crop_size=(32, 32), allow_negative_crop=True)
    *steps, last = cfg.train_dataloader.dataset.pipeline
    cfg.train_dataloader.dataset.pipeline = [*steps, crop, last]
    cfg.model.test_cfg.windows = dict(size=32, overlap=16)
    overfit.use_few_images(cfg, 3)
    assert cfg.model.test_cfg.windows.size == 32
    init_default_scope(cfg.default_scope)
    trained = DATASETS.build(cfg.train_dataloader.dataset)
    found = [trained[i % 3] for i in range(9)]  # None where a crop has no objects
    assert {tuple(one['inputs'].shape[1:]) for one in found if one} == {(32, 32)}


@pytest.mark.parametrize('task', ['det', pytest.param('seg', marks=pytest.mark.long)])
def test_a_model_that_learned_nothing_is_called_so(task, small_data, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(overfit, 'TESTS', 1)
    monkeypatch.setattr(overfit, 'SEEN_PER_TEST', 1)
    assert call('train', write_config(tmp_path, task, small_data), '--overfit', 2) == 0
    printed = ' '.join(''.join(capfd.readouterr()).split())
    assert 'The model did not learn the 2 images' in printed
    assert f'Done: checkpoints and logs are in work_dirs/{task}_overfit' in printed
    monkeypatch.setattr(overfit, 'LEARNED', {s: (n, -2) for s, (n, _) in overfit.LEARNED.items()})
    # There are only 8, and not all have objects.
    words = [write_config(tmp_path, task, small_data), '--overfit', 9]
    assert call('train', *words) == 0
    annotations = small_data / 'coco/annotations/instances_train2017.json'
    with_objects = {a['image_id'] for a in json.loads(annotations.read_text())['annotations']}
    count = 8 if task == 'seg' else len(with_objects)
    assert f'The model learned the {count} images' in ' '.join(''.join(capfd.readouterr()).split())


def test_configs_that_cannot_be_used_are_explained(capfd):
    config = 'xcit_mm::pretraining/dino_xcit_s12_16_300e.py'
    assert call('train', config, '--overfit', 2) == 2
    assert '--overfit is for detectors and segmentors' in capfd.readouterr().err
