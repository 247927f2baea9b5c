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


def blamed(output):
    """What the doctor has a cure for, optional things and the processor aside."""
    lines = re.findall(r'^(.+?): .*\. To fix: .+\.$', output, re.M)
    return [name for name in lines if name not in ('timm', 'torchvision', 'AMX')]


@pytest.mark.long  # make setup ends with the same check
def test_doctor_finds_no_problem_here(tmp_path):
    run = Environment(tmp_path).command('doctor')
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == 'Detection and segmentation can run.'
    assert re.search(r'^mmcv operators +(compiled|torchvision) +ok$', run.stdout, re.M)
    assert len(re.findall(r'^(?:detection|segmentation) +predicts +ok$', run.stdout, re.M)) == 2
    assert blamed(run.stdout) == []


@pytest.mark.parametrize(
    'lacking, name, cure',
    [
        (['numpy'], 'numpy', 'pip install "numpy"'),
        pytest.param(['torch'], 'torch', 'pip install "torch', marks=pytest.mark.long),
        pytest.param(['addict'], 'mmengine', 'pip install addict', marks=pytest.mark.long),
        (['mmcv', 'mmcv_lite'], 'mmcv', 'pip install mmcv-lite==2.1.0'),
    ],
)
def test_doctor_blames_only_what_both_tasks_lack(tmp_path, lacking, name, cure):
    run = Environment(tmp_path, lacking).command('doctor')
    assert (run.returncode, run.stderr) == (1, '')
    assert blamed(run.stdout) == [name] and cure in run.stdout
    assert 'timm:' not in run.stdout and 'torchvision:' not in run.stdout
    assert run.stdout.splitlines()[-1] == 'Neither detection nor segmentation can run.'


@pytest.mark.parametrize(
    'lacking, names, verdict',
    [
        pytest.param(
            DETECTION,
            ['pycocotools', 'six', 'mmdet'],
            'Segmentation can run. Detection cannot.',
            marks=pytest.mark.long,
        ),
        pytest.param(
            ['terminaltables', *SEGMENTATION],
            ['ftfy', 'regex', 'mmsegmentation', 'detection'],
            'Neither detection nor segmentation can run.',
            marks=pytest.mark.long,
        ),
    ],
)
def test_doctor_says_which_task_can_run(tmp_path, lacking, names, verdict):
    run = Environment(tmp_path, lacking).command('doctor')
    assert run.returncode == 1
    assert blamed(run.stdout) == names
    assert run.stdout.splitlines()[-1] == verdict


def test_doctor_lists_all_that_is_missing_at_once(tmp_path):
    lacking = ['numpy', 'cv2', 'opencv_python', 'rich', 'safetensors', 'regex']
    run = Environment(tmp_path, lacking).command('doctor')
    assert blamed(run.stdout) == ['numpy', 'opencv-python', 'rich', 'safetensors', 'regex']


def test_doctor_advises_opencv_without_windows(tmp_path):
    environment = Environment(tmp_path, ['cv2'])
    (environment.site / 'cv2.py').write_text(
        'raise ImportError("libGL.so.1: cannot open shared object file: No such file")'
    )
    run = environment.command('doctor')
    assert blamed(run.stdout) == ['opencv-python'] and 'opencv-python-headless' in run.stdout


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


def test_segmentation_alone_imports_every_command_but_the_demo(tmp_path):
    modules = [f'xcit_mm_cli.{path.stem}' for path in (ROOT / 'xcit_mm_cli').glob('[a-z]*.py')]
    modules.remove('xcit_mm_cli.demo')
    environment = Environment(tmp_path, DETECTION)
    run = environment.run('-c', f'import {", ".join(modules)}')
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
