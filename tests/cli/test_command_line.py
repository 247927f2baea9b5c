"""``xcit-mm``: its commands, their help, and errors for bad arguments."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from xcit_mm.engine.config import load_config
from xcit_mm.visualization.pictures import PICTURES
from xcit_mm_cli import COMMANDS, main, parse_args, visualize

ROOT = Path(__file__).parents[2]
CONFIG = 'configs/detection/mask_rcnn_xcit_n12_16_3x.py'
HEAVY = ('torch', 'numpy', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'matplotlib', 'rich', 'xcit_mm')


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_every_tool_runs_a_command():
    texts = [path.read_text() for path in (ROOT / 'tools').glob('*.py')]
    called = {re.search(r"\(run_command\('([\w-]+)'\)\)", text)[1] for text in texts}
    assert set(COMMANDS) - called == {'shapes', 'doctor', 'serve'} and called < set(COMMANDS)


def test_the_help_lists_every_command_with_an_example(capsys):
    assert main(['--help']) == 0
    printed = capsys.readouterr().out
    assert re.findall(r'^  ([a-z-]+) +\w', printed, re.MULTILINE) == list(COMMANDS)
    for name, command in COMMANDS.items():
        example = f'xcit-mm {name} {command.example}'.rstrip()
        assert f' {example}\n' in f'{printed}\n'
        parse_args(name, shlex.split(command.example))
        with pytest.raises(SystemExit, match='0'):
            main([name, '--help'])
        assert ' '.join(capsys.readouterr().out.split()).endswith(f'Example: {example}')
    assert main([]) == 2 and 'train' in capsys.readouterr().err


# Asks every command for help, gives it a wrong option, and names files that do not exist.
LIGHT = f"""
import contextlib, io, sys
from xcit_mm_cli import COMMANDS, main

files = ['none.py', 'none.pth', '--config', 'none.py', '--checkpoint', 'none.pth']
for name in COMMANDS:
    for words, status in ((['--help'], 0), (['--nonsense'], 2), (files, 2)):
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(sys.stdout):
                ended = main([name, *words])
        except SystemExit as end:
            ended = end.code
        assert ended == status, (name, words, ended)
        assert not set({HEAVY}) & set(sys.modules), (name, words)
"""


def test_help_and_bad_arguments_import_nothing_heavy():
    run = subprocess.run([sys.executable, '-c', LIGHT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_module_and_a_tool_run_like_the_script(capsys):
    for words in (['-m', 'xcit_mm_cli', 'trian'], ['tools/train.py', '--trian']):
        run = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert run.returncode == 2 and run.stdout == '' and 'error: ' in run.stderr


@pytest.mark.parametrize('words', [['--help'], ['train', '--help']])
@pytest.mark.parametrize('unbuffered', ['', '1'])
def test_a_command_ends_quietly_when_nobody_reads_its_output(words, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, '-m', 'xcit_mm_cli', *words], cwd=ROOT, stdout=writer,
        stderr=subprocess.PIPE, text=True, env={**os.environ, 'PYTHONUNBUFFERED': unbuffered},
    )  # fmt: skip
    os.close(writer)
    assert run.stderr == '' and run.returncode in (0, 141)


def test_the_old_name_of_a_command_works_with_a_warning(tmp_path, capsys):
    assert main(['convert', str(tmp_path / 'none.pth'), str(tmp_path / 'out.safetensors')]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning == 'warning: "xcit-mm convert" is now "xcit-mm convert-weights".'
    assert 'none.pth' in error


def test_the_help_lists_all_pictures():
    assert tuple(visualize.PICTURES) == PICTURES


def test_options_are_read_as_mmengine_reads_them():
    words = ['train_cfg.max_epochs=3', 'a.b=[(1,2),x]', 'work_dir=None', 'c=a=b', 'd=1e-3']
    args = parse_args('train', [CONFIG, *(w for o in words for w in ('--cfg-options', o))])
    assert args.cfg_options == words
    cfg = load_config(CONFIG, words)
    assert cfg.train_cfg.max_epochs == 3 and cfg.work_dir is None and cfg.d == 1e-3
    assert cfg.a.b == [(1, 2), 'x'] and cfg.c == 'a=b'


INFER = 'infer i.tif --config c.py --checkpoint c.pth'
VISUALIZE = 'visualize i.png --checkpoint c.pth'
EXPORT = f'export {CONFIG} c.pth'
REFUSED = {
    'trian': "xcit-mm has no command 'trian'. Did you mean train?",
    'quux': f'The commands are {", ".join(COMMANDS)}.',
    'train configs/detection/mask_rcnn_xcit_s12_8_4x.py': 'There is no config',
    'train detection/none.py': 'From anywhere, name installed configs as xcit_mm::detection/',
    'train xcit_mm::detection/none.py': 'There is no config xcit_mm::detection/none.py.',
    'train xcit_mm::detection/mask_rcnn_xcit_s12_8_4x.py': (
        'Did you mean xcit_mm::detection/mask_rcnn_xcit_s12_8_3x.py?'
    ),
    'train c --cfg-options foo': "'foo' must be KEY=VALUE",
    'train c --cfg-options =1': "'=1' must be KEY=VALUE",
    'train c --seed=-1': "--seed: '-1' must be a whole number from 0",
    'check c --workers=-1': "--workers: '-1' must be a whole number above 0",
    'convert-data folder --val-fraction 1.5': "--val-fraction: '1.5' must be a number from 0 to 1",
    'shapes --train 0': "--train: '0' must be",
    f'{VISUALIZE} --max-side 0': "--max-side: '0' must be",
    f'{VISUALIZE} --dpi 0': "--dpi: '0' must be",
    f'{INFER} --score-thr 2': "--score-thr: '2' must be",
    f'{INFER} --memory 4GB': '--memory limits what --whole uses',
    f'{INFER} --window 64 --memory 4GB': '--memory limits what --whole uses',
    f'{INFER} --overlap 16': '--overlap is what the windows of --window have in common',
    f'{INFER} --whole --overlap 16': '--overlap is what the windows of --window have in common',
    f'{INFER} --window 64 --overlap 64': '--overlap must be from 0 to 63',
    'test c w --overlap 16': '--overlap is what the windows of --window have in common',
    'test c w --window 64 --overlap 64': '--overlap must be from 0 to 63',
    f'{INFER} --whole --ann-file a.json': '--ann-file is for detectors',
    f'{INFER} --whole --score-thr 0.5': '--score-thr is for detectors',
    f'{INFER} --whole --retry-skipped': 'drop --retry-skipped',
    f'{INFER} --window 512 --retry-skipped': 'drop --retry-skipped',
    'infer a.jpg': 'required',
    'infer a.jpg --config c.py': '--config needs --checkpoint',
    'infer a.jpg --model m.onnx --config c.py': 'not allowed with',
    'infer a.jpg --model m.onnx --checkpoint c.pth': 'drop --checkpoint',
    'infer a.jpg --model m.onnx --device cuda': 'drop --device',
    f'{EXPORT} --out model.pt2': 'must end in .onnx',
    f'{EXPORT} --format torch --out model.onnx': 'must end in .pt2',
    f'{EXPORT} --channel-order bgr': '--channel-order is for --uint8',
    f'{EXPORT} --int8 --format torch': 'are for --format onnx',
    f'{EXPORT} --calibration image.png': '--calibration is for --int8',
}


@pytest.mark.parametrize('line', REFUSED)
def test_arguments_that_cannot_be_meant_are_refused_at_once(line, capsys):
    try:
        status = main(line.split())
    except SystemExit as ended:
        status = ended.code
    error = capsys.readouterr().err.splitlines()[-1]
    assert status == 2 and 'error: ' in error and REFUSED[line] in error
