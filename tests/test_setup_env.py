"""The set-up script: its errors, and when it considers an environment ready."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture
def setup_env(tmp_path, monkeypatch):
    path = ROOT / 'requirements' / 'setup_env.py'
    spec = importlib.util.spec_from_file_location('setup_env', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, 'LOG', tmp_path / 'log')
    return module


def test_a_failed_step_shows_the_end_of_its_output_and_advice(setup_env):
    setup_env.run(sys.executable, '-X', 'utf8', '-c', 'print("é" * 9999)')
    code = 'print(*range(99), sep="\\n"); print("x.h:1: Python.h: No such file"); exit(3)'
    with pytest.raises(setup_env.StepFailed) as raised:
        setup_env.run(sys.executable, '-c', code)
    lines = str(raised.value).splitlines()
    assert '  | 98' in lines and '  | 5' not in lines
    assert 'status 3' in lines[-2] and 'python3-dev' in lines[-1]
    assert '42' in setup_env.LOG.read_text()


def test_without_a_compiler_it_says_which_package_to_install(setup_env, monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(setup_env.StepFailed, match=r'apt-get install g\+\+'):
        setup_env.build_mmcv()


@pytest.mark.parametrize('version', [(3, 10, 13), (3, 11, 0), (3, 13, 0)])
def test_every_requirement_is_pinned_for_every_python(setup_env, monkeypatch, version):
    monkeypatch.setattr(sys, 'version_info', version)
    pins = setup_env.pinned_versions()
    lines = [
        line
        for file in (ROOT / 'requirements').glob('*.txt')
        for line in file.read_text().splitlines()
        if line and not line.startswith('#')
    ]
    expected = {}
    for requirement in map(Requirement, lines):
        if not requirement.marker or requirement.marker.evaluate(
            dict(python_version='.'.join(map(str, version[:2])))
        ):
            name = requirement.name.lower().replace('_', '-')
            assert name not in expected, f'pinned twice: {name}'
            expected[name] = str(requirement.specifier).removeprefix('==')
    assert pins == expected and len(pins) == len({Requirement(line).name for line in lines})
    assert pins['torch'] == '2.13.0' and 'torchvision' in pins


def test_an_environment_is_ready_only_with_its_last_file(setup_env, tmp_path, monkeypatch):
    monkeypatch.setattr(setup_env, 'READY', tmp_path / 'ready')
    assert setup_env.missing()
    (tmp_path / 'ready').write_text('another set-up')
    assert setup_env.missing()
    (tmp_path / 'ready').write_text(setup_env.fingerprint())
    monkeypatch.setattr(setup_env, 'SITE', tmp_path / 'nothing')
    assert any('torch' in name for name in setup_env.missing())


@pytest.mark.skipif(not (ROOT / '.venv' / 'xcit_mm-ready').is_file(), reason='not set up by make')
def test_nothing_is_done_when_nothing_is_missing():
    # A dry run leaves the environment of these tests alone, even if something is missing.
    command = [str(ROOT / 'requirements' / 'setup_env.py'), '--dry-run']
    base = getattr(sys, '_base_executable', sys.executable)
    run = subprocess.run([base, *command], capture_output=True, text=True, timeout=20)
    assert run.returncode == 0 and run.stdout == '', f'make setup: {run.stdout}'


def test_a_changed_setup_py_reinstalls_only_the_project(setup_env, tmp_path, monkeypatch, capsys):
    installed = tmp_path / 'installed'
    (tmp_path / 'xcit_mm-0.1.0.dist-info').mkdir()
    (tmp_path / 'xcit_mm-0.1.0.dist-info' / 'METADATA').write_text('Name: xcit_mm\n')
    monkeypatch.setattr(setup_env, 'INSTALLED', installed)
    monkeypatch.setattr(setup_env, 'SITE', tmp_path)
    monkeypatch.setattr(setup_env, 'missing', lambda *options: [])
    monkeypatch.setattr(sys, 'argv', ['setup_env.py', '--dry-run'])
    installed.write_text('of another setup.py')
    assert setup_env.main() == 1 and capsys.readouterr().out == 'this project\ncheck\n'
    installed.write_text(setup_env.project_fingerprint())
    assert setup_env.main() == 0 and capsys.readouterr().out == ''
    monkeypatch.setattr(setup_env, 'missing', lambda *options: ['torch 2.13.0'])
    assert setup_env.main() == 1 and capsys.readouterr().out == 'torch 2.13.0\n'
