"""Checks the environment, and says what is missing and how to fix it.

This file uses only the standard library, so that it runs where nothing else does. It looks at what
is installed, imports it, and finally runs a small model of each task. It does not try what depends
on something broken, so that only the cause is named.
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

from .arguments import parse_args

# task -> the config of its small model
TASKS = {
    'detection': 'detection/mask_rcnn_xcit_n12_8_shapes.py',
    'segmentation': 'segmentation/sem_fpn_xcit_n12_8_shapes.py',
}
# The most of a processor that oneDNN may use where AMX is broken.
ISA_WITHOUT_AMX = 'AVX512_CORE_FP16'


@dataclass
class Check:
    """One line of the table.

    Args:
        name (str): What was checked.
        tasks (Sequence[str]): The tasks that need it.
        found (str): Its version or state. Defaults to '-'.
        supported (str): The supported versions. Defaults to ''.
        problem (str): What is wrong. Defaults to '', nothing.
        fix (str): What to do about it. Defaults to ''.
        tried (bool): Whether it was tried, not only looked at. Defaults to True.
    """

    name: str
    tasks: Sequence[str]
    found: str = '-'
    supported: str = ''
    problem: str = ''
    fix: str = ''
    tried: bool = True


class Package(NamedTuple):
    """A package that something needs.

    Args:
        module (str): What is imported.
        distributions (tuple[str]): What can be installed to get it, the usual one first.
        tasks (Sequence[str]): The tasks that need it. Defaults to both.
        purpose (str): What needs it, where that is not obvious. Defaults to ''.
    """

    module: str
    distributions: tuple[str, ...]
    tasks: Sequence[str] = tuple(TASKS)
    purpose: str = ''


OPENCV = tuple(f'opencv-{kind}' for kind in (
    'python', 'python-headless', 'contrib-python', 'contrib-python-headless'))  # fmt: skip
# In the order in which they can be imported, and should be fixed.
PACKAGES = (
    Package('numpy', ('numpy',)),
    Package('torch', ('torch',)),
    Package('cv2', OPENCV),
    Package('pkg_resources', ('setuptools',), purpose='mmengine imports its pkg_resources'),
    Package('rich', ('rich',)),
    Package('safetensors', ('safetensors',)),
    Package('mmengine', ('mmengine',)),
    Package('mmcv', ('mmcv', 'mmcv-lite')),
    Package('xcit_mm', ('xcit_mm',)),
    Package('pycocotools', ('pycocotools',), ('detection',)),
    Package('six', ('six',), ('detection',), 'mmdet imports it'),
    Package('mmdet', ('mmdet',), ('detection',)),
    Package('ftfy', ('ftfy',), ('segmentation',), 'mmseg imports it'),
    Package('regex', ('regex',), ('segmentation',), 'mmseg imports it'),
    Package('mmseg', ('mmsegmentation',), ('segmentation',)),
    Package('torchvision', ('torchvision',), (), 'timm imports it'),
    Package('timm', ('timm',), (), 'for timm:// weights'),
)
# No requirement of this package asks for mmcv: pip would compile it.
MMCV_SUPPORTED = '>=2.0.0,<2.2'
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
BUG_FIX = 'install supported versions of the packages above; if they are, please report a bug'
# Libraries for windows and fonts, which slim images of containers lack.
WINDOW_LIBRARIES = re.compile(r'lib(GL|EGL|glib|gthread|SM|ICE|X\w+)[-.\d]*\.so')
# Modules whose package has another name.
DISTRIBUTIONS = {'yaml': 'pyyaml', 'PIL': 'pillow', 'skimage': 'scikit-image'}


def main(argv: Sequence[str] | argparse.Namespace | None = None) -> int:
    """Print the report; returns 0 if both tasks can run."""
    if not isinstance(argv, argparse.Namespace):
        parse_args('doctor', argv, 'xcit-mm doctor')
    checks = examine()
    print(report(checks))
    return int(len(able(checks)) < len(TASKS))


def examine() -> list[Check]:
    """Run all checks, in the order in which problems should be fixed."""
    checks = [_python()]
    for package in PACKAGES:
        checks.append(_try(_installed(package), checks, _import, package.module))
        if package.module == 'xcit_mm':
            operators = Check('mmcv operators', tuple(TASKS), fix=MMCV_FIX)
            checks.append(_try(operators, checks, _find_operators))
    for task in TASKS:
        checks.append(_try(Check(task, (task,), fix=BUG_FIX), checks, _predict, task))
    if any(check.name == 'torch' and _works(check) for check in checks):
        checks += [_cuda(), *_amx()]
    return checks


def able(checks: list[Check]) -> list[str]:
    """The tasks that can run."""
    return [check.name for check in checks if check.name in TASKS and _works(check)]


def report(checks: list[Check]) -> str:
    """The table, one line per problem, and which tasks can run."""
    rows = [('', 'found', 'supported', ''), *(_row(check) for check in checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        '  '.join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    broken = [check for check in checks if check.problem]
    lines += ['', *(f'{check.name}: {check.problem}. To fix: {check.fix}.' for check in broken)]
    can, cannot = able(checks), [task for task in TASKS if task not in able(checks)]
    if not cannot:
        verdict = 'Detection and segmentation can run.'
    elif can:
        verdict = f'{can[0].capitalize()} can run. {cannot[0].capitalize()} cannot.'
    else:
        verdict = 'Neither detection nor segmentation can run.'
    return '\n'.join(line.rstrip() for line in [*lines, verdict])


def _row(check: Check) -> tuple[str, str, str, str]:
    if check.problem:
        state = 'PROBLEM' if check.tasks else 'optional'
    else:
        state = 'ok' if check.tried else 'not tried'
    return check.name, check.found, check.supported, state


def _works(check: Check) -> bool:
    return check.tried and not check.problem


def _python() -> Check:
    check = Check('python', tuple(TASKS), platform.python_version(), '>=3.10')
    if not _satisfies(check.found, check.supported):
        check.problem, check.fix = 'too old', 'create an environment with a newer Python'
    return check


def _installed(package: Package) -> Check:
    """Look for a package, without importing it."""
    versions = {name: _version(name) for name in package.distributions}
    name = next((name for name, version in versions.items() if version), package.distributions[0])
    supported = MMCV_SUPPORTED if package.module == 'mmcv' else _supported(name)
    check = Check(name, package.tasks, versions[name] or '-', supported)
    check.fix = FIXES.get(package.module) or f'pip install "{name}{supported}"'
    reason = f' ({package.purpose})' if package.purpose else ''
    if not _is_there(package.module):
        check.problem = f'not installed{reason}'
    elif supported and versions[name] and not _satisfies(check.found, supported):
        check.problem = f'version {check.found} is not supported{reason}'
    return check


def _version(distribution: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ''


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _try(check: Check, earlier: list[Check], attempt: Callable[..., str], *args: str) -> Check:
    """Try what was found, unless what it needs is broken, and write the result into the check."""
    if check.problem:
        return check
    needed_by = set(check.tasks or TASKS)
    if any(not _works(other) and needed_by <= set(other.tasks) for other in earlier):
        check.tried = False
        return check
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter('ignore')
            check.found = attempt(*args) or check.found
    except Exception as error:  # the user must see whatever a broken package raises
        first_line = (str(error).splitlines() or [''])[0].rstrip('.')
        check.problem = f'does not work: {type(error).__name__}: {first_line}'
        check.fix = _cure(error, check)
    return check


def _cure(error: Exception, check: Check) -> str:
    if isinstance(error, ImportError) and WINDOW_LIBRARIES.search(str(error)):
        return HEADLESS_FIX
    missing = (getattr(error, 'name', None) or '').partition('.')[0]
    if isinstance(error, ModuleNotFoundError) and missing not in ('', 'mmcv', 'xcit_mm'):
        return f'pip install {DISTRIBUTIONS.get(missing, missing)}'
    return check.fix.replace('pip install "', 'pip install --force-reinstall "')


def _import(module: str) -> str:
    importlib.import_module(module)
    return ''


def _find_operators() -> str:
    """Import mmcv's operators; where it has none, ``import xcit_mm`` has put ours in place."""
    compiled = importlib.import_module('mmcv._ext').__name__ == 'mmcv._ext'
    return 'compiled' if compiled else 'torchvision'


def _predict(task: str) -> str:
    """Run a small model, as ``xcit-mm infer`` does."""
    import numpy as np
    from mmengine.hub import get_config

    from xcit_mm.inference import load_predictor

    cfg = get_config(f'xcit_mm::{TASKS[task]}')
    predictor = load_predictor(cfg, None, 'cpu', allow_partial=True)
    predictor(np.zeros((64, 64, 3), np.uint8))
    return 'predicts'


def _cuda() -> Check:
    import torch

    available = torch.cuda.is_available()
    found = f'{torch.cuda.device_count()} devices' if available else 'no: the CPU is used'
    return Check('CUDA', (), found)


def _amx() -> list[Check]:
    """Whether the processor has the matrix unit that it claims; some virtual machines do not."""
    if not _claims_amx():
        return []
    if not has_broken_amx():
        limit = os.environ.get('ONEDNN_MAX_CPU_ISA')
        return [Check('AMX', (), f'limited to {limit}' if limit else 'works')]
    problem = 'bfloat16 crashes: the processor claims to have AMX but cannot run it'
    fix = f'export ONEDNN_MAX_CPU_ISA={ISA_WITHOUT_AMX}'
    return [Check('AMX', (), 'broken', problem=problem, fix=fix)]


def has_broken_amx() -> bool:
    """Whether a bfloat16 product crashes a process here, because the processor lacks its AMX."""
    code = 'import torch; x = torch.ones(64, 64).bfloat16(); x @ x'
    command = [sys.executable, '-c', code]
    return _claims_amx() and subprocess.run(command, capture_output=True).returncode < 0


def _claims_amx() -> bool:
    cpuinfo = Path('/proc/cpuinfo')
    return cpuinfo.is_file() and 'amx_tile' in cpuinfo.read_text(encoding='utf-8')


def _supported(name: str) -> str:
    """The range that setup.py states, read from this package's metadata."""
    try:
        requirements = importlib.metadata.requires('xcit_mm') or []
    except importlib.metadata.PackageNotFoundError:
        return ''
    for requirement in requirements:
        match = re.match(rf'{name}\s*([<>=!~][^;]*)', requirement)
        if match:
            return match[1].strip()
    return ''


def _satisfies(version: str, supported: str) -> bool:
    """Whether a version is in a range of ``>=``, ``<`` and ``<=`` bounds."""
    for operator, bound in re.findall(r'(>=|<=|<)\s*([\d.]+)', supported):
        have, want = _numbers(version), _numbers(bound)
        length = max(len(have), len(want))
        have += (0,) * (length - len(have))
        want += (0,) * (length - len(want))
        if not {'>=': have >= want, '<=': have <= want, '<': have < want}[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r'\d+(?:\.\d+)*', version)
    return tuple(int(part) for part in release[0].split('.')) if release else ()
