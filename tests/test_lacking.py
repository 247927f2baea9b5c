"""Environments that lack a package: what still runs, and what the doctor says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DETECTION = ('mmdet', 'pycocotools', 'six')
SEGMENTATION = ('mmseg', 'mmsegmentation', 'ftfy', 'regex')
SHORT = ['train_cfg.max_iters=1', 'shapes.train=4', 'shapes.val=1']


class Environment:
    """The packages of this environment without some, linked into a folder."""

    def __init__(self, folder, lacking=()):
        self.folder, self.site = folder, folder / 'site'
        self.site.mkdir()
        names = tuple(f'{name}{end}' for name in lacking for end in '-.')
        for entry in next(p for p in map(Path, sys.path) if (p / 'mmengine').is_dir()).iterdir():
            name = entry.name.lower()
            if name not in lacking and not name.startswith((*names, '__editable__')):
                (self.site / entry.name).symlink_to(entry)

    def run(self, *arguments):
        # Without the module "site", Python knows no other packages than these.
        return subprocess.run(
            [sys.executable, '-S', *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=self.folder,
            env={**os.environ, 'PYTHONPATH': f'{self.site}:{ROOT}'},
        )

    def command(self, *arguments):
        return self.run('-m', 'xcit_mm_cli', *arguments)

    def add(self, distribution, version, module, code=None):
        """Add a distribution, and what its module does when it is imported."""
        info = self.site / f'{distribution.replace("-", "_")}-{version}.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text(f'Name: {distribution}\nVersion: {version}\n')
        (info / 'top_level.txt').write_text(f'{module}\n')
        if code:
            (self.site / f'{module}.py').write_text(code)


def blamed(output):
    """What the doctor has a fix for, optional things and the processor aside."""
    lines = re.findall(r'^(.+?): .*\. To fix: .+\.$', output, re.M)
    return [name for name in lines if name not in ('timm', 'torchvision', 'scikit-learn', 'AMX')]


@pytest.mark.long  # make setup ends with the same check
def test_doctor_finds_no_problem_here_or_with_a_fork(tmp_path):
    environment = Environment(tmp_path, ['mmdet-3.3.0.dist-info'])
    environment.add('onedl-mmdetection', '9.5.1', 'mmdet')
    run = environment.command('doctor')
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == 'Detection and segmentation can run.'
    assert re.search(r'^mmcv operators +(compiled|torchvision) +ok$', run.stdout, re.M)
    assert re.search(r'^onedl-mmdetection +9.5.1 +\S+ +ok, not tested$', run.stdout, re.M)
    assert len(re.findall(r'^(?:detection|segmentation) +predicts +ok$', run.stdout, re.M)) == 2
    assert blamed(run.stdout) == []


NEITHER = 'Neither detection nor segmentation can run.'
LACKING = {
    'numpy': (['numpy'], NEITHER, 'pip install "numpy"'),
    'torch': (['torch'], NEITHER, 'pip install "torch'),
    'addict': (['mmengine'], NEITHER, 'pip install addict'),
    'mmcv mmcv_lite': (['mmcv'], NEITHER, 'pip install mmcv-lite==2.1.0'),
    'numpy cv2 opencv_python rich safetensors regex': (
        ['numpy', 'opencv-python', 'rich', 'safetensors', 'regex'], NEITHER, 'pip install "rich"'
    ),
    ' '.join(DETECTION): (
        ['pycocotools', 'six', 'mmdet'], 'Segmentation can run. Detection cannot.', 'pip install'
    ),
    ' '.join(['terminaltables', *SEGMENTATION]): (
        ['ftfy', 'regex', 'mmsegmentation', 'detection'], NEITHER, 'pip install terminaltables'
    ),
}  # fmt: skip
FAST = ('numpy', 'mmcv mmcv_lite', 'numpy cv2 opencv_python rich safetensors regex')


@pytest.mark.parametrize(
    'lacking', [n if n in FAST else pytest.param(n, marks=pytest.mark.long) for n in LACKING]
)
def test_doctor_blames_only_what_is_missing(tmp_path, lacking):
    names, verdict, fix = LACKING[lacking]
    run = Environment(tmp_path, lacking.split()).command('doctor')
    assert (run.returncode, run.stderr) == (1, '')
    assert blamed(run.stdout) == names and fix in run.stdout
    assert run.stdout.splitlines()[-1] == verdict


BROKEN = {
    'cv2': (
        'raise ImportError("libGL.so.1: cannot open shared object file: No such file")',
        'opencv-python', '4.0', 'pip install opencv-python-headless',
    ),
    'torch': ('assert False, "version"', 'torch', '99.0', 'To fix: pip install "torch>='),
}  # fmt: skip


@pytest.mark.parametrize('module', BROKEN)
def test_doctor_fixes_what_is_installed_and_broken(tmp_path, module):
    code, distribution, version, fix = BROKEN[module]
    environment = Environment(tmp_path, [module, distribution.replace('-', '_')])
    environment.add(distribution, version, module, code)
    run = environment.command('doctor')
    assert blamed(run.stdout) == [distribution] and fix in run.stdout


def test_doctor_has_help(tmp_path):
    run = Environment(tmp_path, ['torch', 'mmcv', 'numpy']).command('doctor', '--help')
    assert run.returncode == 0 and 'how to fix' in ' '.join(run.stdout.split())


def test_without_mmcv_the_import_fails_with_advice(tmp_path):
    environment = Environment(tmp_path, ['mmcv', 'mmcv_lite'])
    run = environment.run('-c', 'import xcit_mm')
    assert run.returncode == 1
    assert 'ModuleNotFoundError: xcit_mm needs mmcv' in run.stderr
    assert 'pip install mmcv-lite' in run.stderr
    run = environment.command('stats')
    assert run.returncode == 2 and run.stderr.startswith('error: xcit_mm needs mmcv')
    assert 'xcit-mm doctor' in run.stderr and 'Traceback' not in run.stderr


# Commands import what they need inside functions.
IMPORTS = """
import ast, pathlib, xcit_mm_cli

for path in pathlib.Path(xcit_mm_cli.__file__).parent.glob('[a-z]*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and path.stem != 'demo':
            exec(compile(ast.Module([node], []), path, 'exec'), {'__package__': 'xcit_mm_cli'})
"""


@pytest.mark.long
def test_segmentation_alone_imports_every_command_but_the_demo(tmp_path):
    environment = Environment(tmp_path, DETECTION)
    run = environment.run('-c', IMPORTS)
    assert run.returncode == 0, run.stderr
    run = environment.command('demo')
    assert run.returncode == 2 and 'xcit-mm doctor' in run.stderr


# In one process: importing everything takes longer than the rest.
WORKFLOW = """
import sys
from xcit_mm_cli import main

def run(*arguments, status=0):
    assert main(arguments) == status, arguments

metric, config, other, *options = sys.argv[1:]
options.insert(0, '--cfg-options')
run('train', config, '--work-dir', 'run', '--no-validate', *options)
run('check', config, '--split', 'val', *options)
run('test', config, 'run/iter_1.pth', '--eval', metric, *options)
run('infer', 'data/shapes/coco/val2017', '--config', config, '--checkpoint', 'run/iter_1.pth')
run('train', other, *options, status=2)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    'lacking, metric, config, other',
    [
        (DETECTION, 'mIoU', 'segmentation/sem_fpn', 'detection/mask_rcnn'),
        (SEGMENTATION, 'bbox', 'detection/mask_rcnn', 'segmentation/sem_fpn'),
    ],
)
def test_one_task_needs_nothing_of_the_other(tmp_path, lacking, metric, config, other):
    """It draws its data, trains, checks, tests and predicts; the other one says what it lacks."""
    configs = (f'xcit_mm::{name}_xcit_n12_8_shapes.py' for name in (config, other))
    run = Environment(tmp_path, lacking).run('-c', WORKFLOW, metric, *configs, *SHORT)
    assert run.returncode == 0, run.stdout + run.stderr
    error = run.stderr.splitlines()[-1]
    assert lacking[0] in error and 'xcit-mm doctor' in error
