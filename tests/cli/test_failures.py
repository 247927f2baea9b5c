"""Ordinary failures of the system: one sentence and status 2, from every command."""

import contextlib
import importlib
import os
import resource
from pathlib import Path

import pytest
import torch

# Where nobody may write, whoever runs the tests.
FORBIDDEN = Path('/sys/xcit_mm')


def call(command, *words):
    return importlib.import_module(f'xcit_mm_cli.{command}').main([str(word) for word in words])


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
            'convert': [checkpoint, out / 'weights.safetensors'],
            'stats': ['--paper', '--out', out / 'table.txt'],
            'demo': ['--quick', '--out-dir', out],
            'shapes': [out, '--train', 1, '--val', 1, '--force'],
        }

    return arguments


def one_error(capsys, *parts):
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith('error: ')]
    assert len(errors) == 1 and errors[0] == lines[-1], lines
    assert 'Traceback' not in '\n'.join(lines)
    assert all(part in errors[0] for part in parts), errors[0]


COMMANDS = ('train', 'test', 'infer', 'visualize', 'check', 'convert', 'stats', 'demo', 'shapes')
WITH_CONFIG = COMMANDS[:5]


@pytest.mark.parametrize('command', COMMANDS)
def test_the_output_path_is_a_file(command, words, tmp_path, capsys):
    file = tmp_path / 'file'
    file.write_text('mine')
    assert call(command, *words(file)[command]) == 2
    one_error(capsys, str(file))
    assert file.read_text() == 'mine'


@pytest.mark.skipif(not FORBIDDEN.parent.is_dir(), reason='a folder of Linux')
@pytest.mark.parametrize('command', COMMANDS)
def test_there_is_no_permission_to_write(command, words, capsys):
    assert call(command, *words(FORBIDDEN)[command]) == 2
    one_error(capsys, str(FORBIDDEN), 'ermi')


@contextlib.contextmanager
def full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize('command', COMMANDS)
def test_no_file_can_be_written_from_the_start(command, words, tmp_path, capsys):
    with full_disk():
        status = call(command, *words(tmp_path / 'out')[command])
    assert status == 2
    one_error(capsys, 'Free some space')


BAD_CONFIGS = {
    'syntax error': ('a = (\n', 'yntax'),
    'missing base': ("_base_ = 'nowhere.py'\n", 'nowhere.py'),
    'base elsewhere': (
        "_base_ = 'configs/detection/mask_rcnn_xcit_s12_16_1x.py'\n",
        'relative to the config file that has them. To name a config of this project from '
        "anywhere: _base_ = 'xcit_mm::detection/mask_rcnn_xcit_s12_16_1x.py'",
    ),
    'unknown name': ('a = 1\nb = c\n', "line 2: NameError: name 'c' is not defined"),
    'unknown import': ("custom_imports = dict(imports=['no_such_module'])\n", 'no_such_module'),
}


@pytest.mark.parametrize('command', WITH_CONFIG)
def test_a_config_is_wrong(command, words, tmp_path, capsys):
    config = tmp_path / 'wrong.py'
    for text, part in BAD_CONFIGS.values():
        config.write_text(text)
        assert call(command, *words(tmp_path / 'out', config)[command]) == 2
        one_error(capsys, str(config), part)
    config.write_bytes(b"a = '\xff'\n")
    assert call(command, *words(tmp_path / 'out', config)[command]) == 2
    one_error(capsys, str(config), 'utf-8')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('command', WITH_CONFIG[:4])
@pytest.mark.parametrize(
    'setting', ["arch='xcit_huge'", 'num_layer=3'], ids=['arch', 'argument of the backbone']
)
def test_the_backbone_is_wrong(command, setting, words, trained, tmp_path, capsys):
    config, _ = trained('sem_fpn')
    wrong = tmp_path / 'wrong.py'
    wrong.write_text(f"{config.read_text()}\nmodel['backbone'].update({setting})\n")
    assert call(command, *words(tmp_path / 'out', wrong)[command]) == 2
    one_error(capsys, setting.partition('=')[2 if 'arch' in setting else 0].strip("'"))


@pytest.mark.parametrize('command', ['infer', 'visualize'])
@pytest.mark.parametrize('device', ['gpu', f'cuda:{torch.cuda.device_count()}'])
def test_there_is_no_such_device(command, device, words, tmp_path, capsys):
    assert call(command, *words(tmp_path / 'out')[command], '--device', device) == 2
    one_error(capsys, device, 'cpu')


@pytest.mark.parametrize('command', ['train', 'test', 'infer', 'check'])
@pytest.mark.parametrize('option', ['foo', 'default_scope.x=1', 'a=[(1,2]'])
def test_a_setting_is_wrong(command, option, words, tmp_path, capsys):
    argv = [*words(tmp_path / 'out')[command], '--cfg-options', option]
    try:
        status = call(command, *argv)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert option in capsys.readouterr().err.splitlines()[-1]


def test_an_output_folder_that_is_missing_is_made(words, tmp_path):
    out = tmp_path / 'a' / 'b'
    for command in ('convert', 'shapes', 'check'):
        assert call(command, *words(out / command)[command]) == 0
        assert os.listdir(out / command)
