"""Checks the environment and says what is missing and how to fix it.

Uses only the standard library, so that it runs where nothing else does.
"""

import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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
# No extra asks for mmcv: pip would compile it.
MMCV_SUPPORTED = '>=2.0.0,<2.2'
MMCV_FIX = (
    'pip install mmcv-lite==2.1.0, with torch and torchvision from the same index; or get a '
    'compiled mmcv 2.1: "make setup OPS=compiled" in a clone, or "mim install mmcv==2.1.0" where a '
    'wheel for this torch exists'
)


def examine() -> list[Check]:
    """Run all checks, in the order in which they should be fixed."""
    checks = [
        Check('python', platform.python_version(), '>=3.10'),
        Check('xcit_mm', __version__),
    ]
    checks += [_package(*package) for package in PACKAGES]
    checks[6:6] = [_mmcv_ops()]
    return [*checks, _cuda(), *_amx()]


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
    state = 'ok' if not check.problem else 'PROBLEM' if check.needed else 'optional'
    return check.name, check.found, check.supported, state


def _package(name: str, module: str, extra: str, purpose: str) -> Check:
    supported = MMCV_SUPPORTED if name == 'mmcv' else _supported(name)
    check = Check(name, '-', supported, needed=name not in OPTIONAL)
    target = f'xcit_mm[{extra}]' if extra else f'"{name}{supported}"'
    check.fix = MMCV_FIX if name == 'mmcv' else f'pip install {target}'
    reason = f' ({purpose})' if purpose else ''
    check.found = _installed(name) or (_installed('mmcv-lite') if name == 'mmcv' else '') or '-'
    if check.found == '-':
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


def _installed(name: str) -> str:
    """The version of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ''


def _mmcv_ops() -> Check:
    check = Check('mmcv operators', 'compiled')
    try:
        # Where mmcv has none, xcit_mm.compat.mmcv_ops has put its own in place.
        if importlib.import_module('mmcv._ext').__name__ != 'mmcv._ext':
            check.found = 'torchvision'
    except Exception as error:
        check.found, check.fix = 'none', MMCV_FIX
        check.problem = (
            f"mmcv has no compiled operators, and torchvision's cannot be loaded "
            f'({type(error).__name__}: {error})'
        )
    return check


def _amx() -> list[Check]:
    """Whether the processor has the matrix unit that it claims; some virtual machines do not."""
    cpuinfo = Path('/proc/cpuinfo')
    if not cpuinfo.is_file() or 'amx_tile' not in cpuinfo.read_text():
        return []
    code = 'import torch; x = torch.ones(64, 64).bfloat16(); x @ x'
    if subprocess.run([sys.executable, '-c', code], capture_output=True).returncode >= 0:
        limit = os.environ.get('ONEDNN_MAX_CPU_ISA')
        return [Check('AMX', f'limited to {limit}' if limit else 'works')]
    return [
        Check(
            'AMX',
            'broken',
            problem='bfloat16 crashes: the processor claims AMX and cannot run it',
            fix='export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16',
            needed=False,
        )
    ]


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
