"""Checks the environment and says what is missing and how to fix it.

Uses only the standard library, so that it runs where nothing else does.
"""

import importlib
import importlib.metadata
import platform
import re
from dataclasses import dataclass

from .version import __version__


@dataclass
class Check:
    """One line of the table."""

    name: str
    found: str
    supported: str = ''
    problem: str = ''
    fix: str = ''
    needed: bool = True


# distribution, module to import, extra of setup.py that asks for it, what it is needed for
PACKAGES = (
    ('torch', 'torch', '', ''),
    ('mmengine', 'mmengine', '', ''),
    ('setuptools', 'pkg_resources', '', 'mmengine imports pkg_resources'),
    ('mmcv', 'mmcv', 'det', ''),
    ('mmdet', 'mmdet', 'det', 'detection'),
    ('mmsegmentation', 'mmseg', 'seg', 'segmentation'),
    ('timm', 'timm', 'timm', 'timm:// weights and comparisons'),
    ('torchvision', 'torchvision', '', 'mmengine reports its version, timm imports it'),
)
OPTIONAL = ('timm', 'torchvision')
MMCV_FIX = (
    'run "make setup" in a clone, which compiles mmcv 2.1.0 in minutes, or "mim install '
    'mmcv==2.1.0" if there is a wheel for this torch'
)


def examine() -> list[Check]:
    """Run all checks, in the order in which they should be fixed."""
    checks = [
        Check('python', platform.python_version(), '>=3.10'),
        Check('xcit_mm', __version__),
    ]
    checks += [_package(*package) for package in PACKAGES]
    checks[6:6] = [_mmcv_ops()]
    checks.append(_cuda())
    return checks


def report(checks: list[Check]) -> str:
    """The table and, below it, one line per problem."""
    rows = [('', 'found', 'supported', ''), *(_row(check) for check in checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        '  '.join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    broken = [check for check in checks if check.problem]
    lines += ['', *(f'{check.name}: {check.problem}. To fix: {check.fix}.' for check in broken)]
    if any(check.needed for check in broken):
        lines.append('Detection or segmentation cannot run.')
    else:
        lines.append('Detection and segmentation can run.')
    return '\n'.join(line.rstrip() for line in lines)


def _row(check: Check) -> tuple[str, str, str, str]:
    state = 'ok' if not check.problem else 'PROBLEM' if check.needed else 'missing (optional)'
    return check.name, check.found, check.supported, state


def _package(name: str, module: str, extra: str, purpose: str) -> Check:
    supported = _supported(name)
    check = Check(name, '-', supported, needed=name not in OPTIONAL)
    target = f'xcit_mm[{extra}]' if extra else f'"{name}{supported}"'
    check.fix = MMCV_FIX if name == 'mmcv' else f'pip install {target}'
    reason = f' ({purpose})' if purpose else ''
    try:
        check.found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        check.problem = f'not installed{reason}'
        return check
    if supported and not _satisfies(check.found, supported):
        check.problem = f'version {check.found} is not supported{reason}'
        return check
    try:
        importlib.import_module(module)
    except Exception as error:  # the user must see whatever a broken package raises
        first_line = (str(error).splitlines() or [''])[0]
        check.problem = f'cannot be imported: {type(error).__name__}: {first_line}'
    return check


def _mmcv_ops() -> Check:
    check = Check('mmcv operators', 'compiled')
    try:
        importlib.import_module('mmcv._ext')
    except Exception as error:
        check.found, check.fix = '-', MMCV_FIX
        check.problem = f'mmcv has no compiled operators ({type(error).__name__}: {error})'
    return check


def _cuda() -> Check:
    try:
        import torch

        available = torch.cuda.is_available()
        found = f'{torch.cuda.device_count()} devices' if available else 'no: the CPU is used'
    except Exception:
        found = '-'
    return Check('CUDA', found)


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
