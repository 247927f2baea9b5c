"""Failures that a user can fix: one sentence and status 2, from every command."""

import contextlib
import os
import resource
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
import torch

from ..tiny import ROOT, call

# Where nobody may write, whoever runs the tests.
FORBIDDEN = Path('/sys/xcit_mm')


@pytest.fixture(scope='module')
def words(trained, small_data):
    """A function that returns the arguments of each command."""
    config, checkpoint = trained('sem_fpn')
    image = next((small_data / 'ade' / 'images' / 'validation').iterdir())

    def arguments(out, config=config):
        weights = ['--config', config, '--checkpoint', checkpoint]
        return {
            'train': [config, '--work-dir', out],
            'test': [config, checkpoint, '--work-dir', out],
            'infer': [image, *weights, '--out-dir', out],
            'visualize': [image, *weights, '--out-dir', out],
            'check': [config, '--json', out / 'problems.json'],
            'convert-weights': [checkpoint, out / 'weights.safetensors'],
            'stats': ['--paper', '--out', out / 'table.txt'],
            'demo': ['--quick', '--out-dir', out],
            'shapes': [out, '--train', 1, '--val', 1, '--force'],
        }

    return arguments


COMMANDS = ('train', 'test', 'infer', 'visualize', 'check', 'convert-weights', 'stats', 'demo',
            'shapes')  # fmt: skip
WITH_CONFIG = COMMANDS[:5]


def one_error(capfd, *parts):
    lines = capfd.readouterr().err.splitlines()
    errors = [line for line in lines if 'error: ' in line]
    assert len(errors) == 1 and 'Traceback' not in '\n'.join(lines), lines
    message = '\n'.join(lines[lines.index(errors[0]) :])
    assert all(part in message for part in parts), message


@contextlib.contextmanager
def full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize('command', COMMANDS)
def test_nothing_can_be_written(command, words, tmp_path, capsys):
    file = tmp_path / 'file'
    file.write_text('mine')
    assert call(command, *words(file)[command]) == 2
    one_error(capsys, str(file))
    assert file.read_text() == 'mine'
    if FORBIDDEN.parent.is_dir():  # on Linux
        assert call(command, *words(FORBIDDEN)[command]) == 2
        one_error(capsys, str(FORBIDDEN), 'ermi')
    with full_disk():
        assert call(command, *words(tmp_path / 'out')[command]) == 2
    one_error(capsys, 'Free some space')


def test_an_output_folder_that_is_missing_is_made(words, tmp_path):
    out = tmp_path / 'a' / 'b'
    for command in ('convert-weights', 'shapes', 'check'):
        assert call(command, *words(out / command)[command]) == 0
        assert os.listdir(out / command)


BAD_CONFIGS = {
    b'a = (\n': 'yntax',
    b"_base_ = 'nowhere.py'\n": 'nowhere.py',
    b"_base_ = 'configs/detection/mask_rcnn_xcit_s12_16_1x.py'\n": (
        'relative to the config file that has them. To name a config of this project from '
        "anywhere: _base_ = 'xcit_mm::detection/mask_rcnn_xcit_s12_16_1x.py'"
    ),
    b'a = 1\nb = c\n': "line 2: NameError: name 'c' is not defined",
    b"custom_imports = dict(imports=['no_such_module'])\n": 'no_such_module',
    b"a = '\xff'\n": 'utf-8',
}
WRONG_BACKBONES = {"arch='xcit_huge'": 'xcit_huge', 'num_layer=3': 'num_layer'}


@pytest.mark.parametrize('command', WITH_CONFIG)
def test_a_config_is_wrong(command, words, trained, tmp_path, capsys):
    config, out = tmp_path / 'wrong.py', tmp_path / 'out'
    for text, part in BAD_CONFIGS.items():
        config.write_bytes(text)
        assert call(command, *words(out, config)[command]) == 2
        one_error(capsys, str(config), part)
    assert not out.exists()
    if command == 'check':  # it is for data
        return
    for setting, part in WRONG_BACKBONES.items():
        config.write_text(
            f"{trained('sem_fpn')[0].read_text()}\nmodel['backbone'].update({setting})\n"
        )
        assert call(command, *words(out, config)[command]) == 2
        one_error(capsys, part)


@pytest.mark.parametrize('command', ['train', 'test', 'infer', 'check'])
def test_a_setting_is_wrong(command, words, tmp_path, capsys):
    for option in ('default_scope.x=1', 'a=[(1,2]'):
        assert call(command, *words(tmp_path / 'out')[command], '--cfg-options', option) == 2
        one_error(capsys, option)


CUDA = f'cuda:{torch.cuda.device_count()}'
COCO = 'train configs/detection/mask_rcnn_xcit_n12_16_3x.py'
INFER_SEG = 'infer {scene} --config {seg} --checkpoint {seg_weights} --out-dir {out}'
INFER_DET = 'infer {scene} --config {det} --checkpoint {det_weights} --out-dir {out}'
VISUALIZE = 'visualize {image} --out-dir {out} --checkpoint'
REFUSED = {
    f'{COCO} --work-dir {{out}}': 'https://cocodataset.org',
    'train configs/segmentation/sem_fpn_xcit_n12_16_80k.py': 'ADEChallengeData2016',
    f'{COCO} --resume nowhere.pth': 'There is no checkpoint',
    f'{COCO} --cfg-options model.backbone.init_cfg.checkpoint=no.pth': 'There is no checkpoint',
    f'{COCO} --cfg-options trian_cfg.max_epochs=1': (
        'trian_cfg.max_epochs: there is no trian_cfg. Did you mean train_cfg?'
    ),
    f'{COCO} --auto-scale-lr --cfg-options auto_scale_lr=None': 'base_batch_size',
    'test {seg} no.pth': 'There is no checkpoint',
    'test {seg} no.pth --eval bbox': 'supports mIoU, mDice, mFscore.',
    'test {det} no.pth --eval mIoU': 'supports bbox, segm, proposal, proposal_fast.',
    'test {boxes} no.pth --eval segm': '--eval segm: this model supports bbox, proposal,',
    'test {det} no.pth --tta': 'merges boxes only, not masks',
    'test {det} no.pth --out a.json': '--out must end in .pkl',
    'test {seg} no.pth --out {image}': 'already exists; --force overwrites it.',
    f'{INFER_SEG} --device gpu': "no device 'gpu'; PyTorch finds cpu",
    f'{INFER_SEG} --device {CUDA}': f"no device '{CUDA}'",
    f'{INFER_SEG} --ann-file a.json': 'a segmentor writes label PNGs',
    f'{INFER_SEG} --score-thr 0.5': 'a segmentor has none',
    f'{INFER_SEG} --window 300 --ann-file a.json': 'a segmentor writes label PNGs',
    f'{INFER_SEG} --window 300 --score-thr 0.5': 'a segmentor has none',
    f'{INFER_SEG} --whole --memory much': 'must be an amount of memory such as 4GB',
    f'{INFER_SEG} --whole --memory 20MB': 'it takes at least',
    f'{INFER_DET} --whole': 'use --window 2048 --overlap 256',
    f'{VISUALIZE} {{seg_weights}} --config {{seg}} --device gpu': "no device 'gpu'",
    f'{VISUALIZE} no.pth': 'There is no checkpoint',
    f'{VISUALIZE} no.pth --detection 1': '--detection runs the whole model: give its --config.',
    f'{VISUALIZE} no.pth --config {{det}} --class cat --per-head': 'do not go together',
    f'{VISUALIZE} {{seg_weights}} --config {{seg}} --detection 1': '--detection needs a detector',
    f'{VISUALIZE} {{det_weights}} --config {{det}} --class unicorn': 'the classes are person,',
    f'{VISUALIZE} no.pth --config no.py': 'There is no config',
    f'{VISUALIZE} {{seg_weights}} --config {{seg}} --pictures class_attention': (
        '--pictures class_attention: the backbone of a detector'
    ),
    f'{VISUALIZE} {{seg_weights}} --config {{seg}} --layers 13': '1...4',
    f'{VISUALIZE} {{seg_weights}} --config {{seg}} --layers x': 'must be "all" or numbers',
}
if not torch.cuda.is_available():
    REFUSED[f'{COCO} --amp'] = '--amp needs a CUDA device'


@pytest.fixture(scope='module')
def names(trained, tmp_path_factory):
    """What the command lines above stand for."""
    found, folder = {}, tmp_path_factory.mktemp('failures')
    for name, head in {'seg': 'sem_fpn', 'det': 'mask_rcnn', 'boxes': 'faster_rcnn'}.items():
        found[name], found[f'{name}_weights'] = trained(head)
    pixels = np.zeros((150, 118, 3), np.uint8)
    tifffile.imwrite(folder / 'scene.tif', pixels, photometric='rgb')
    cv2.imwrite(str(folder / 'image.png'), pixels)
    return {**found, 'scene': folder / 'scene.tif', 'image': folder / 'image.png'}


@pytest.mark.parametrize('line', REFUSED)
def test_what_cannot_be_done_is_refused(line, names, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    out = tmp_path / 'out'
    assert call(*shlex.split(line.format(out=out, **names))) == 2
    one_error(capfd, REFUSED[line])
    assert not list(out.rglob('*.*'))
