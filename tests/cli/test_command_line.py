"""``xcit-mm``: its commands, their help, and errors for bad arguments."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xcit_mm.errors import UserError
from xcit_mm.visualization.pictures import PICTURES
from xcit_mm_cli import COMMANDS, arguments, main
from xcit_mm_cli.common import load_config

ROOT = Path(__file__).parents[2]
TOOLS = sorted((ROOT / 'tools').glob('*.py'))
CONFIG = 'configs/detection/mask_rcnn_xcit_n12_16_3x.py'
HEAVY = ('torch', 'numpy', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'matplotlib', 'rich', 'xcit_mm')


def test_every_command_has_a_module_and_every_tool_has_a_command():
    modules = {path.stem for path in (ROOT / 'xcit_mm' / 'cli').glob('*.py')}
    # The doctor is not among them: it runs where this package cannot be imported.
    named = {name.replace('-', '_') for name in COMMANDS}
    assert modules - {'__init__', 'common'} == named - {'doctor'}
    called = {re.search(r"\(run, '([\w-]+)'\)", path.read_text())[1] for path in TOOLS}
    assert set(COMMANDS) - called == {'shapes', 'doctor'} and called < set(COMMANDS)


def test_help_lists_every_command(capsys):
    assert main(['--help']) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in COMMANDS:
        assert any(re.match(rf'  {name} +\w', line) for line in lines), name
    assert main([]) == 2 and 'train' in capsys.readouterr().err


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_has_help(name, capsys):
    for run in (lambda *words: main([name, *words]), lambda *words: command(name)(list(words))):
        with pytest.raises(SystemExit) as ended:
            run('--help')
        printed = capsys.readouterr().out
        assert ended.value.code == 0 and len(printed) > 200
        with pytest.raises(SystemExit) as ended:
            run('--nonsense')
        assert ended.value.code == 2 and 'error: ' in capsys.readouterr().err


def command(name):
    package = 'xcit_mm_cli'
    return importlib.import_module(f'{package}.{name.replace("-", "_")}').main


# Runs a script and then prints which heavy packages it imported.
LOADED = f"""
import runpy, sys
try:
    runpy.run_path(sys.argv[0], run_name='__main__')
finally:
    print('loaded', *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    'words, status',
    [
        (['--help'], 0),
        (['--nonsense'], 2),
        (['none.py', 'none.pth', '--config', 'none.py', '--checkpoint', 'none.pth'], 2),
    ],
    ids=['help', 'unknown argument', 'missing files'],
)
@pytest.mark.parametrize('tool', TOOLS, ids=lambda path: path.stem)
def test_a_tool_reports_bad_arguments_without_heavy_imports(tool, words, status):
    script = f'import sys; sys.argv[:] = {[str(tool), *words]!r}\n{LOADED}'
    run = subprocess.run([sys.executable, '-c', script], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == status, run.stderr
    assert run.stderr.splitlines()[-1] == 'loaded'


def test_the_module_runs_like_the_script():
    words = [sys.executable, '-m', 'xcit_mm_cli', 'trian']
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == ''
    assert run.stderr == "error: xcit-mm has no command 'trian'. Did you mean train?\n"


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


def test_arguments_are_parsed_once(monkeypatch, tmp_path, capsys):
    parsed, convert = [], COMMANDS['convert']

    def add_arguments(parser):
        parsed.append(parser)
        convert.add_arguments(parser)

    monkeypatch.setitem(COMMANDS, 'convert', convert._replace(add_arguments=add_arguments))
    assert main(['convert', str(tmp_path / 'none.pth'), str(tmp_path / 'out.safetensors')]) == 2
    assert len(parsed) == 1 and 'none.pth' in capsys.readouterr().err


def test_an_unknown_command_lists_the_known_ones(capsys):
    assert main(['quux']) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in COMMANDS)


def test_the_error_for_a_missing_config_is_one_paragraph(capsys):
    for run in (lambda *words: main(['train', *words]), lambda *words: command('train')(words)):
        assert run('configs/detection/mask_rcnn_xcit_s12_8_4x.py') == 2
        error = capsys.readouterr().err
        assert error.startswith('error: There is no config') and len(error.splitlines()) == 1


def test_the_help_lists_all_pictures():
    assert tuple(arguments.PICTURES) == PICTURES


def test_options_are_read_as_mmengine_reads_them(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ['train_cfg.max_epochs=3', 'a.b=[(1,2),x]', 'work_dir=None', 'c=a=b', 'd=1e-3']
    args = arguments.parse_args(
        'train', [CONFIG, *(w for o in words for w in ('--cfg-options', o))]
    )
    assert args.cfg_options == words
    cfg = load_config(CONFIG, words)
    assert cfg.train_cfg.max_epochs == 3 and cfg.work_dir is None and cfg.d == 1e-3
    assert cfg.a.b == [(1, 2), 'x'] and cfg.c == 'a=b'
    with pytest.raises(UserError, match='--cfg-options e='):
        load_config(CONFIG, ['e=[(1,2]'])
    for wrong in ('foo', '=1'):
        with pytest.raises(SystemExit) as ended:
            command('train')([CONFIG, '--cfg-options', wrong])
        error = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2 and f'{wrong!r} must be KEY=VALUE' in error


@pytest.mark.parametrize(
    'words',
    [
        ['visualize', '--max-side', '0'],
        ['visualize', '--dpi', '0'],
        ['check', '--workers', '-1'],
        ['infer', '--score-thr', '2'],
        ['shapes', '--train', '0'],
        ['train', '--seed', '-1'],
        ['convert-data', '--val-fraction', '1.5'],
    ],
    ids=' '.join,
)
def test_numbers_that_cannot_be_meant_are_refused(words, capsys):
    name, option, value = words
    required = {'visualize': ['i', '--checkpoint', 'c'], 'check': ['c'], 'train': ['c']}
    required['convert-data'] = ['folder']
    required['infer'] = [*required['visualize'], '--config', 'c']
    with pytest.raises(SystemExit) as ended:
        arguments.parse_args(name, [*required.get(name, []), f'{option}={value}'])
    error = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and f'argument {option}: {value!r} must be' in error
