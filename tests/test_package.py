"""What an import loads, and packaging."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from xcit_mm import __version__

ROOT = Path(__file__).parents[1]


def python(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, **kwargs
    )


def test_import_loads_none_of_the_heavy_packages():
    code = (
        'import sys, xcit_mm; '
        'print(*[m for m in ("mmdet", "mmseg", "timm", "torchvision") if m in sys.modules])'
    )
    assert python('-c', code).stdout.strip() == ''


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    """A wheel and an sdist, built from a copy of the tracked files."""
    folder = tmp_path_factory.mktemp('package')
    files = subprocess.run(
        ['git', 'ls-files', '-co', '--exclude-standard'],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split('\n')  # fmt: skip
    for name in filter(None, files):
        if (ROOT / name).is_file():
            target = folder / 'source' / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    code = 'import setuptools.build_meta as b, sys; b.build_sdist("{0}"); b.build_wheel("{0}")'
    run = python('-c', code.format(folder), cwd=folder / 'source')
    assert run.returncode == 0, run.stderr
    return next(folder.glob('*.whl')), next(folder.glob('*.tar.gz'))


def test_wheel_and_sdist_ship_configs_tools_and_index(archives):
    wheel, sdist = archives
    names = set(zipfile.ZipFile(wheel).namelist())
    assert f'xcit_mm-{__version__}' in wheel.name
    for name in ('model-index.yml', 'tools/model_stats.py'):
        assert f'xcit_mm/.mim/{name}' in names
    configs = {p.relative_to(ROOT) for p in (ROOT / 'configs').rglob('*.py')}
    assert {f'xcit_mm/.mim/{p}' for p in configs} <= names
    assert {'xcit_mm/weights/published.json', 'xcit_mm/py.typed'} <= names
    assert {name.split('/')[0] for name in names} == {
        'xcit_mm', 'xcit_mm_cli', 'xcit_mm_deploy', 'xcit_mm_runtime',
        f'xcit_mm-{__version__}.dist-info',
    }  # fmt: skip
    with tarfile.open(sdist) as archive:
        sources = {name.split('/', 1)[-1] for name in archive.getnames()}
    assert {'setup.py', 'LICENSE', 'model-index.yml', 'tools/model_stats.py'} <= sources
    assert {str(p) for p in configs} <= sources


@pytest.fixture(scope='module')
def installed(archives, tmp_path_factory):
    """The environment of a process that has the wheel installed, and a folder elsewhere."""
    folder = tmp_path_factory.mktemp('installed')
    install = ['-m', 'pip', 'install', '--no-deps', '--no-index', '--target', str(folder / 'lib')]
    assert python(*install, str(archives[0])).returncode == 0
    return {'cwd': folder, 'env': {**os.environ, 'PYTHONPATH': str(folder / 'lib')}}


def test_installed_wheel_works_from_elsewhere(installed):
    user_config = installed['cwd'] / 'mine.py'
    user_config.write_text("_base_ = 'xcit_mm::detection/mask_rcnn_xcit_s12_8_3x.py'\n")
    code = (
        'import xcit_mm; from mmengine.config import Config; print(xcit_mm.__file__); '
        'print(Config.fromfile("mine.py").model.backbone.arch)'
    )
    run = python('-c', code, **installed)
    assert run.returncode == 0, run.stderr
    path, arch = run.stdout.split()
    assert path.startswith(str(installed['cwd'])) and arch == 's12'


def test_installed_wheel_has_the_commands(installed):
    script = installed['cwd'] / 'lib' / 'bin' / 'xcit-mm'
    run = python(str(script), '--version', **installed)
    assert run.stdout == f'xcit-mm {__version__}\n', run.stderr
    run = python(str(script), 'shapes', 'here', '--train', '1', '--val', '1', **installed)
    assert run.returncode == 0, run.stderr
    assert (installed['cwd'] / 'here' / 'coco' / 'val2017').is_dir()


def test_mim_knows_the_installed_package(installed):
    code = (
        'from mim.commands.search import get_model_info as f; found = f("xcit_mm", to_dict=True); '
        'print(len(found), found["mask_rcnn_xcit_s12_8_3x"]["weight"])'
    )
    run = python('-c', code, **installed)
    assert run.returncode == 0, run.stderr
    count, weight = run.stdout.split()[-2:]
    assert count == '24' and weight.endswith('/coco/maskrcnn_xcit_small_12_p8.pth')


# Each tier imports from those above it and from itself. What is not named, such as the errors, is
# for all of xcit_mm.
TIERS = (
    {'xcit_mm_runtime'},
    {'xcit_mm.compat'},
    {'xcit_mm.weights'},
    {'xcit_mm.models'},
    {'xcit_mm.engine', 'xcit_mm.datasets', 'xcit_mm.pretraining'},
    {
        'xcit_mm.inference',
        'xcit_mm.deploy',
        'xcit_mm.large',
        'xcit_mm.visualization',
        'xcit_mm.retrieval',
    },
    {'xcit_mm.demo'},
    {'xcit_mm_cli', 'dev'},
)


def tier_of(name, unnamed):
    parts = name.split('.')
    names = {parts[0], '.'.join(parts[:2])}
    return next((number for number, tier in enumerate(TIERS) if tier & names), unnamed)


def imported(tree, package):
    """The full names of what a module of a package imports, but for the sake of types."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == 'TYPE_CHECKING':
        return
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        above = package[: len(package) + 1 - tree.level] if tree.level else ()
        base = '.'.join(filter(None, (*above, tree.module)))
        yield from (f'{base}.{alias.name}' for alias in tree.names)
    for child in ast.iter_child_nodes(tree):
        yield from imported(child, package)


def test_imports_point_downwards():
    paths = [path for path in ROOT.glob('xcit_mm*/**/*.py') if '.mim' not in path.parts]
    assert paths
    for path in paths:
        module = path.relative_to(ROOT).with_suffix('').parts
        tier = tier_of('.'.join(module), unnamed=TIERS.index({'xcit_mm.demo'}))
        for name in imported(ast.parse(path.read_text(encoding='utf-8')), module[:-1]):
            if name.partition('.')[0] in ('xcit_mm', 'xcit_mm_runtime', 'xcit_mm_cli', 'dev'):
                assert tier_of(name, unnamed=1) <= tier, f'{path} imports {name}'
