"""``xcit-mm doctor``: check the environment, and say what is missing and how to fix it.

This file uses only the standard library, so that it runs where nothing else does. It looks at what
is installed, imports it, and finally runs a small model of each task: that proves that the task
works. A version that was not tested is only a remark. What depends on something broken is not
tried, so that only the cause is named.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# task -> its package, and the config of its small model
TASKS = {
    'detection': ('mmdet', 'detection/mask_rcnn_xcit_n12_8_shapes.py'),
    'segmentation': ('mmseg', 'segmentation/sem_fpn_xcit_n12_8_shapes.py'),
}
PYTHON = '>=3.10'
# The most of a processor that oneDNN may use where AMX is broken.
ISA_WITHOUT_AMX = 'AVX512_CORE_FP16'


@dataclass
class Check:
    """One line of the table.

    Args:
        name (str): What was checked.
        tasks (Sequence[str]): The tasks that need it.
        found (str): Its version or state. Defaults to '-'.
        tested (str): The versions that were tested. Defaults to ''.
        fix (str): What to do if it does not work. Defaults to ''.
        problem (str): What is wrong. Defaults to '', nothing.
        remark (str): What may be the reason if something else does not work. Defaults to ''.
        tried (bool): Whether it was tried, not only looked at. Defaults to True.
    """

    name: str
    tasks: Sequence[str]
    found: str = '-'
    tested: str = ''
    fix: str = ''
    problem: str = ''
    remark: str = ''
    tried: bool = True

    @property
    def works(self) -> bool:
        """Return whether it was tried with success."""
        return self.tried and not self.problem

    @property
    def state(self) -> str:
        """Return the last column of the table."""
        if self.problem:
            return 'PROBLEM' if self.tasks else 'optional'
        return 'not tried' if not self.tried else 'ok, not tested' if self.remark else 'ok'


class Package(NamedTuple):
    """A package that something needs.

    Args:
        module (str): What is imported. Any distribution that has it will do, such as a fork.
        distribution (str): What is usually installed to get it.
        tested (str): The versions that were tested. Defaults to '', for any.
        tasks (Sequence[str]): The tasks that need it. Defaults to both.
        purpose (str): What needs it, where that is not obvious. Defaults to ''.
    """

    module: str
    distribution: str
    tested: str = ''
    tasks: Sequence[str] = tuple(TASKS)
    purpose: str = ''


DETECTION, SEGMENTATION = ('detection',), ('segmentation',)
# In the order in which they can be imported, and should be fixed. The versions are those of the
# table in docs/install.md, also of forks with the same modules; no requirement asks for them.
PACKAGES = (
    Package('numpy', 'numpy'),
    Package('torch', 'torch', '>=2.1,<2.16'),
    Package('cv2', 'opencv-python'),
    Package('pkg_resources', 'setuptools', '<81', purpose='mmengine imports its pkg_resources'),
    Package('rich', 'rich'),
    Package('safetensors', 'safetensors'),
    Package('mmengine', 'mmengine', '>=0.10.4,<1.0'),
    Package('mmcv', 'mmcv', '>=2.1,<2.4'),
    Package('xcit_mm', 'xcit_mm'),
    Package('pycocotools', 'pycocotools', '', DETECTION),
    Package('six', 'six', '', DETECTION, 'mmdet imports it'),
    Package('mmdet', 'mmdet', '>=3.2,<3.6', DETECTION),
    Package('ftfy', 'ftfy', '', SEGMENTATION, 'mmseg imports it'),
    Package('regex', 'regex', '', SEGMENTATION, 'mmseg imports it'),
    Package('mmseg', 'mmsegmentation', '>=1.2,<1.5', SEGMENTATION),
    Package('torchvision', 'torchvision', '', (), 'timm imports it'),
    Package('timm', 'timm', '>=1.0', (), 'for timm:// weights'),
    Package('sklearn', 'scikit-learn', '>=1.2', (), 'for "xcit-mm retrieve"'),
)
# Not mmcv itself, which pip would compile.
MMCV_FIX = (
    'pip install mmcv-lite==2.1.0, with torch and torchvision from the same index; or get a '
    'compiled mmcv 2.1: "make setup OPS=compiled" in a clone, or "mim install mmcv==2.1.0" where a '
    'wheel for this torch exists'
)
# It is on no index.
OWN_FIX = 'pip install -e . in a clone, or install the wheel that "make wheel" builds there'
FIXES = {'mmcv': MMCV_FIX, 'xcit_mm': OWN_FIX}
HEADLESS_FIX = (
    'pip uninstall opencv-python, then pip install opencv-python-headless, which needs no '
    'libraries for windows'
)
BUG_FIX = 'please report a bug'
# Libraries for windows and fonts, which slim images of containers lack.
WINDOW_LIBRARIES = re.compile(r'lib(GL|EGL|glib|gthread|SM|ICE|X\w+)[-.\d]*\.so')
# Modules whose package has another name.
DISTRIBUTIONS = {'yaml': 'pyyaml', 'PIL': 'pillow', 'skimage': 'scikit-image'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Check whether detection and segmentation can run in this environment. Lists the versions '
        'found and tested, and how to fix each problem. Exit status 0 if both can run.'
    )


def run(args: argparse.Namespace) -> int:
    checks = examine()
    print(report(checks))
    return int(len(working_tasks(checks)) < len(TASKS))


def examine() -> list[Check]:
    """Run all checks, in the order in which problems should be fixed."""
    checks = [_check_python()]
    providers = importlib.metadata.packages_distributions()
    for package in PACKAGES:
        check = _find(package, providers.get(package.module, []))
        checks.append(_try(check, checks, importlib.import_module, package.module))
        if package.module == 'xcit_mm':
            operators = Check('mmcv operators', tuple(TASKS), fix=MMCV_FIX)
            checks.append(_try(operators, checks, _find_operators))
    for task in TASKS:
        checks.append(_try(Check(task, (task,), fix=BUG_FIX), checks, _predict, task))
    if any(check.name == 'torch' and check.works for check in checks):
        checks += [_check_cuda(), *_check_amx()]
    return checks


def working_tasks(checks: list[Check]) -> list[str]:
    """Return the tasks that can run."""
    return [check.name for check in checks if check.name in TASKS and check.works]


def report(checks: list[Check]) -> str:
    """Return the table, one line per problem or remark, and which tasks can run."""
    rows = [('', 'found', 'tested', ''), *((c.name, c.found, c.tested, c.state) for c in checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        '  '.join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    lines.append('')
    for check in checks:
        if check.problem:
            lines.append(f'{check.name}: {check.problem}. To fix: {check.fix}.')
        elif check.remark:
            lines.append(f'{check.name}: {check.remark}.')
    can = working_tasks(checks)
    if len(can) == len(TASKS):
        verdict = 'Detection and segmentation can run.'
    elif can:
        (cannot,) = set(TASKS) - set(can)
        verdict = f'{can[0].capitalize()} can run. {cannot.capitalize()} cannot.'
    else:
        verdict = 'Neither detection nor segmentation can run.'
    return '\n'.join(line.rstrip() for line in [*lines, verdict])


def _check_python() -> Check:
    check = Check('python', tuple(TASKS), platform.python_version(), PYTHON)
    if not _satisfies(check.found, check.tested):
        check.problem, check.fix = 'too old', 'create an environment with a newer Python'
    return check


def _find(package: Package, providers: Sequence[str]) -> Check:
    """Look for a package, without importing it.

    Args:
        package (Package): What to look for.
        providers (Sequence[str]): The installed distributions that have it.
    """
    name = providers[0] if providers else package.distribution
    fix = FIXES.get(package.module) or f'pip install "{package.distribution}{package.tested}"'
    check = Check(name, package.tasks, tested=package.tested, fix=fix)
    # Not only of providers: Python 3.10 does not know the modules of every distribution.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        check.found = importlib.metadata.version(name)
    if importlib.util.find_spec(package.module) is None:
        check.problem = 'not installed' + (f' ({package.purpose})' if package.purpose else '')
    elif check.found != '-' and not _satisfies(check.found, check.tested):
        check.remark = f'version {check.found} was not tested; {check.tested} was'
    return check


def _try(check: Check, earlier: list[Check], attempt: Callable[..., object], *args: str) -> Check:
    """Try what was found, unless what it needs is broken, and write the result into the check."""
    if check.problem:
        return check
    needed_by = set(check.tasks or TASKS)
    needed = [other for other in earlier if needed_by <= set(other.tasks)]
    if not all(other.works for other in needed):
        check.tried = False
        return check
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter('ignore')
            found = attempt(*args)
        if isinstance(found, str):
            check.found = found
    except Exception as error:  # the user must see whatever a broken package raises
        first_line = (str(error).splitlines() or [''])[0].rstrip('.')
        check.problem = f'does not work: {type(error).__name__}: {first_line}'
        check.fix = _suggest_fix(error, check, needed)
    return check


def _suggest_fix(error: Exception, check: Check, needed: list[Check]) -> str:
    """Say what to do about something that is installed and does not work.

    Args:
        error (Exception): What it raised.
        check (Check): What was tried.
        needed (list[Check]): What it needs, which works by itself.
    """
    if isinstance(error, ImportError) and WINDOW_LIBRARIES.search(str(error)):
        return HEADLESS_FIX
    missing = (getattr(error, 'name', None) or '').partition('.')[0]
    if isinstance(error, ModuleNotFoundError) and missing not in ('', 'mmcv', 'xcit_mm'):
        return f'pip install {DISTRIBUTIONS.get(missing, missing)}'
    untested = [other.fix for other in (*needed, check) if other.remark]
    if untested:
        return ' and '.join(untested)
    return check.fix.replace('pip install "', 'pip install --force-reinstall "')


def _find_operators() -> str:
    """Import mmcv's operators; where it has none, ``import xcit_mm`` has put ours in place."""
    compiled = importlib.import_module('mmcv._ext').__name__ == 'mmcv._ext'
    return 'compiled' if compiled else 'torchvision'


def _predict(task: str) -> str:
    """Run a small model, as ``xcit-mm infer`` does."""
    import numpy as np
    from mmengine.hub import get_config

    from xcit_mm.inference import load_predictor

    _, config = TASKS[task]
    cfg = get_config(f'xcit_mm::{config}')
    load_predictor(cfg, None, 'cpu', allow_partial=True)(np.zeros((64, 64, 3), np.uint8))
    return 'predicts'


def _check_cuda() -> Check:
    import torch

    available = torch.cuda.is_available()
    found = f'{torch.cuda.device_count()} devices' if available else 'no: the CPU is used'
    return Check('CUDA', (), found)


def _check_amx() -> list[Check]:
    """Check that the processor has the matrix unit that it claims; some virtual machines do not."""
    if not _claims_amx():
        return []
    if has_broken_amx():
        problem = 'bfloat16 crashes: the processor claims to have AMX but cannot run it'
        fix = f'export ONEDNN_MAX_CPU_ISA={ISA_WITHOUT_AMX}'
        return [Check('AMX', (), 'broken', fix=fix, problem=problem)]
    limit = os.environ.get('ONEDNN_MAX_CPU_ISA')
    return [Check('AMX', (), f'limited to {limit}' if limit else 'works')]


def has_broken_amx() -> bool:
    """Return whether a bfloat16 product crashes a process here: the processor lacks its AMX."""
    code = 'import torch; x = torch.ones(64, 64).bfloat16(); x @ x'
    command = [sys.executable, '-c', code]
    return _claims_amx() and subprocess.run(command, capture_output=True).returncode < 0


def _claims_amx() -> bool:
    cpuinfo = Path('/proc/cpuinfo')
    return cpuinfo.is_file() and 'amx_tile' in cpuinfo.read_text(encoding='utf-8')


def _satisfies(version: str, bounds: str) -> bool:
    """Return whether a version is within ``>=`` and ``<`` bounds."""
    for operator, bound in re.findall(r'(>=|<)\s*([\d.]+)', bounds):
        if (_numbers(version) >= _numbers(bound)) != (operator == '>='):
            return False
    return True


def _numbers(version: str) -> list[int]:
    release = re.match(r'\d+(\.\d+)*', version)
    return [int(part) for part in release[0].split('.')] if release else []
