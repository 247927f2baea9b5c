#!/usr/bin/env python3
"""Creates ``.venv/``: the pinned environment in which the tests, the demo and the tools run.

mmcv 2.1.0 is released as source only. Where torchvision can load its own operators, which takes
torch and torchvision from the same index, they replace mmcv's (xcit_mm/compat/mmcv_ops): mmcv-lite
is installed, and no compiler is needed. Otherwise mmcv is compiled. That takes 19 minutes on two
cores; precompiling the header that nearly all of its files include reduces it to 3. The wheel is
kept in the user's cache, so each machine compiles it only once.

Only the standard library is used here: this file runs before anything is installed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / 'requirements'
VENV = ROOT / '.venv'
LOG = ROOT / '.setup.log'
PYTHON = VENV / 'bin' / 'python'
SITE = VENV / 'lib' / f'python{sys.version_info.major}.{sys.version_info.minor}' / 'site-packages'
# Written last. An environment without it was interrupted and is rebuilt, never repaired.
READY = VENV / 'xcit_mm-ready'
# Written when this project is installed in it. If setup.py changes, only that step is repeated.
INSTALLED = VENV / 'xcit_mm-installed'
MMCV_VERSION = '2.1.0'
MIN_PYTHON = (3, 10)
# A line of a requirements file, for all versions of Python, for 3.10, or for those after it.
PIN = r'^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)(?:; python_version (<|>=) "3\.11")?$'

# A precompiled header must be built and used with the same flags. Setting CFLAGS replaces Python's
# own, or follows them (setuptools before 70), where -g0 revokes their -g.
CXX_FLAGS = '-DNDEBUG -fwrapv -O2 -g0 -w'
# Where torch says how its extensions are compiled.
CPP_EXTENSION = Path('torch', 'utils', 'cpp_extension.py')

# Pattern in a failed step's output -> what to do about it.
ADVICE = (
    (r'Python\.h: No such file', 'Install the Python headers: "apt-get install python3-dev" '
     'on Debian and Ubuntu, "dnf install python3-devel" on Fedora.'),
    (r'ensurepip is not available|No module named (venv|ensurepip)', 'Install venv: '
     '"apt-get install python3-venv" on Debian and Ubuntu.'),
    (r'No space left on device', 'Free some disk space: the environment takes '
     '3 GB, or 6 GB with the libraries of CUDA.'),
    (r'Killed signal|Cannot allocate memory|cc1plus: out of memory', 'Free some memory, or '
     'compile one file at a time: "MAX_JOBS=1 make setup".'),
    (r'No matching distribution found|Could not find a version|Temporary failure|'
     r'ConnectionError|Read timed out|Network is unreachable',
     'Check that pip can reach a package index ("pip config list" shows which), then run it '
     'again.'),
)  # fmt: skip


class StepFailed(Exception):
    """A step failed; the message says what to do."""


def installed_versions() -> dict[str, str]:
    """Return the versions in the environment by normalized name: no interpreter is started."""
    return {
        dist.metadata['Name'].lower().replace('_', '-'): dist.version
        for dist in importlib.metadata.distributions(path=[str(SITE)])
    }


def pinned_versions(*files: str) -> dict[str, str]:
    """Return the versions that requirements files ask for, by normalized name.

    Args:
        *files (str): Names of the files. Defaults to all.
    """
    pins = {}
    for file in [REQUIREMENTS / name for name in files] or sorted(REQUIREMENTS.glob('*.txt')):
        for name, version, bound in re.findall(PIN, file.read_text(), re.MULTILINE):
            if bound in ('', '<' if sys.version_info < (3, 11) else '>='):
                pins[name.lower().replace('_', '-')] = version
    return pins


def fingerprint(torch: str | None = None) -> str:
    """Return a text that changes whenever the environment has to be rebuilt."""
    digest = hashlib.sha256(f'{sys.version} {ROOT} {torch or ""}'.encode())
    for file in [*sorted(REQUIREMENTS.glob('*.txt')), Path(__file__)]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def project_fingerprint() -> str:
    """Return a text that changes whenever this project has to be installed again."""
    return hashlib.sha256((ROOT / 'setup.py').read_bytes()).hexdigest()


def is_installed() -> bool:
    """Return whether this project is installed as its setup.py says now."""
    same = INSTALLED.is_file() and INSTALLED.read_text() == project_fingerprint()
    return same and 'xcit-mm' in installed_versions()


def missing(ops: str = 'auto', torch: str | None = None) -> list[str]:
    """Return what the environment lacks."""
    if not READY.is_file() or READY.read_text() != fingerprint(torch):
        return ['a finished set-up for these requirements']
    found, pins = installed_versions(), pinned_versions()
    if torch:
        pins['torch'] = torch
        del pins['torchvision']
    # A local version such as 2.13.0+cpu satisfies the pin 2.13.0.
    lacking = [
        f'{name} {version}'
        for name, version in pins.items()
        if found.get(name, '').partition('+')[0] != version
    ]
    wanted = {'compiled': ('mmcv',), 'torchvision': ('mmcv-lite',)}.get(ops, ('mmcv', 'mmcv-lite'))
    if MMCV_VERSION not in [found.get(name) for name in wanted]:
        lacking.append(f'{wanted[0]} {MMCV_VERSION}')
    return lacking


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Run a command and log its output; on failure, raise with the end of it and advice."""
    words = [str(word) for word in command]
    with LOG.open('a') as log:
        log.write(f'\n$ {" ".join(words)}\n')
        log.flush()
        start = log.tell()
        status = subprocess.run(
            words, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, cwd=cwd
        ).returncode
    if status == 0:
        return
    output = LOG.read_bytes()[start:].decode(errors='replace')
    advice = [text for pattern, text in ADVICE if re.search(pattern, output)]
    lines = ['  | ' + line[:200] for line in output.splitlines()[-20:]]
    lines.append(f'"{" ".join(words[:4])} ..." failed with status {status}.')
    lines.append(advice[0] if advice else 'The log has the whole output.')
    raise StepFailed('\n'.join(lines))


def pip(*arguments: str | Path) -> None:
    run(PYTHON, '-m', 'pip', '--disable-pip-version-check', *arguments)


def make_venv() -> str:
    if VENV.exists():
        shutil.rmtree(VENV)
    run(sys.executable, '-m', 'venv', VENV)
    return f'Python {platform.python_version()}'


def install_torch(torch: str | None = None) -> str:
    pins = pinned_versions('build.txt')
    if torch:
        pins['torch'] = torch
    # pip finds the torchvision that belongs to another torch.
    pip('install', *(n if torch and n == 'torchvision' else f'{n}=={v}' for n, v in pins.items()))
    found = installed_versions()
    return f'torch {found["torch"]}, torchvision {found["torchvision"]}'


def wheel_cache() -> Path:
    """Return where mmcv's wheel for this Python, this torch and this processor is kept."""
    base = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
    torch = installed_versions()['torch'] + ('-cuda' if compiles_cuda() else '')
    key = f'mmcv{MMCV_VERSION}-torch{torch}-{sys.implementation.cache_tag}'
    return base / 'xcit_mm' / 'wheels' / f'{key}-{platform.system()}-{platform.machine()}'.lower()


def torchvision_problem() -> str:
    """Say why torchvision's operators cannot be used in the environment; empty if they can."""
    code = 'import torch, torchvision; torchvision.ops.nms(torch.ones(1, 4), torch.ones(1), 0.5)'
    run = subprocess.run([PYTHON, '-c', code], capture_output=True, text=True)
    return '' if run.returncode == 0 else (run.stderr.strip().splitlines() or ['it crashed'])[-1]


def install_mmcv(ops: str = 'auto') -> str:
    problem = '' if ops == 'compiled' else torchvision_problem()
    if ops == 'torchvision' and problem:
        found = installed_versions()
        raise StepFailed(
            f'OPS=torchvision: torchvision {found["torchvision"]} cannot load its '
            f'operators next to torch {found["torch"]} ({problem}). Both must be builds '
            'for the same CUDA, or both for the CPU. Point pip to an index with such a pair, or '
            'compile mmcv: "make setup OPS=compiled".'
        )
    if ops != 'compiled' and not problem:
        pip('install', f'mmcv-lite=={MMCV_VERSION}')
        return f"mmcv-lite {MMCV_VERSION}, with torchvision's operators: nothing to compile"
    wheel = next(iter(wheel_cache().glob('mmcv-*.whl')), None)
    origin = 'from the cache' if wheel else 'compiled'
    pip('install', wheel or build_mmcv())
    return f'mmcv {MMCV_VERSION} with its operators, {origin}: {wheel_cache()}'


def build_mmcv() -> Path:
    """Compile mmcv in ``.venv/``, which is rebuilt after an interruption, and cache the wheel."""
    compiler = shutil.which(os.environ.get('CXX', 'c++'))
    if compiler is None:
        raise StepFailed(
            'No C++ compiler was found, and mmcv has to be compiled. Install one: "apt-get '
            'install g++" on Debian and Ubuntu, "dnf install gcc-c++" on Fedora, '
            '"xcode-select --install" on macOS; or name it with CXX=... Or do without: "make setup '
            'OPS=torchvision", with torch and torchvision from the same index.'
        )
    build = VENV / 'mmcv-build'
    build.mkdir()
    env = {
        'MMCV_WITH_OPS': '1',
        'MAX_JOBS': os.environ.get('MAX_JOBS', str(os.cpu_count() or 1)),
        'PATH': f'{VENV / "bin"}{os.pathsep}{os.environ["PATH"]}',
    }
    if not compiles_cuda():
        # mmcv would compile for a GPU wherever it sees one, with or without nvcc.
        env |= {'CUDA_VISIBLE_DEVICES': '', 'FORCE_CUDA': '0'}
    standard = cxx_standard()
    version = subprocess.run([compiler, '--version'], capture_output=True, text=True).stdout
    if 'clang' not in version.lower():
        env['CFLAGS'] = precompile_header(compiler, build, standard)
    source = unpack_mmcv(build, standard)
    options = ('--no-build-isolation', '--no-deps', '--no-cache-dir', '--verbose')
    run(PYTHON, '-m', 'pip', 'wheel', *options, '--wheel-dir', build, source, env=env)
    built = next(build.glob('mmcv-*.whl'))
    cached = wheel_cache() / built.name
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Copied under another name first: a wheel in the cache is always complete.
    copy = shutil.copy(built, cached.with_suffix(f'.{os.getpid()}'))
    os.replace(copy, cached)
    shutil.rmtree(build)
    return cached


@functools.cache
def compiles_cuda() -> bool:
    """Return whether mmcv is compiled for a GPU: torch must see one, and nvcc must be there."""
    home = os.environ.get('CUDA_HOME') or os.environ.get('CUDA_PATH')
    if not shutil.which('nvcc', path=f'{home}/bin' if home else None):
        return False
    code = 'import sys, torch; sys.exit(not torch.cuda.is_available())'
    return subprocess.run([PYTHON, '-c', code]).returncode == 0


def cxx_standard() -> str:
    """Return the C++ standard that torch's headers need: that of torch's own extensions."""
    text = (SITE / CPP_EXTENSION).read_text()
    found = re.findall(r"'-std=(c\+\+\d\d)'", text)
    return max(found, default='c++17')


def unpack_mmcv(build: Path, standard: str) -> Path:
    """Unpack mmcv, and make its setup.py ask for the C++ standard that torch needs."""
    options = ('--no-deps', '--no-binary', 'mmcv', '--no-build-isolation', '--dest', build)
    pip('download', *options, f'mmcv=={MMCV_VERSION}')
    with tarfile.open(next(build.glob('mmcv-*.tar.gz'))) as archive:
        archive.extractall(build, filter='data')
    source = build / f'mmcv-{MMCV_VERSION}'
    script = source / 'setup.py'
    script.write_text(re.sub(r'-std=c\+\+1\d', f'-std={standard}', script.read_text()))
    return source


def precompile_header(compiler: str, build: Path, standard: str) -> str:
    """Compile the header that takes most of the time; return the flags that use it."""
    header = build / 'torch_types.h'
    header.write_text('#include <torch/types.h>\n')
    code = (
        'import sysconfig, torch; from torch.utils.cpp_extension import include_paths;'
        'print(int(torch.compiled_with_cxx11_abi()));'
        'print(*include_paths("cpu"), sysconfig.get_path("include"), sep="\\n")'
    )
    printed = subprocess.run([PYTHON, '-c', code], capture_output=True, text=True, check=True)
    abi, *paths = printed.stdout.splitlines()
    includes = [f'-I{path}' for path in paths]
    flags = [*CXX_FLAGS.split(), '-fPIC', f'-std={standard}']
    if 'D_GLIBCXX_USE_CXX11_ABI' in (SITE / CPP_EXTENSION).read_text():  # torch before 2.7
        flags.append(f'-D_GLIBCXX_USE_CXX11_ABI={abi}')
    run(compiler, *flags, *includes, '-x', 'c++-header', header, '-o', f'{header}.gch')
    return f'{CXX_FLAGS} -Winvalid-pch -include {header}'


def install_requirements() -> str:
    # What is there, torch above all, stays as it is.
    found = installed_versions()
    kept = [f'{name}=={found[name]}' for name in ('torch', 'torchvision')]
    pip('install', '-r', REQUIREMENTS / 'runtime.txt', '-r', REQUIREMENTS / 'dev.txt', *kept)
    return 'mmengine, mmdet, mmsegmentation, timm and the development tools'


def install_project() -> str:
    INSTALLED.unlink(missing_ok=True)
    pip('install', '--no-deps', '--no-build-isolation', '--editable', ROOT)
    INSTALLED.write_text(project_fingerprint())
    return 'xcit_mm, editable'


def check() -> str:
    run(PYTHON, '-m', 'xcit_mm_cli', 'doctor')
    return 'detection and segmentation can run'


STEPS: tuple[tuple[str, Callable[..., str]], ...] = (
    ('virtual environment', make_venv),
    ('torch and build tools', install_torch),
    ('mmcv (if compiled, once per machine, about 4 minutes)', install_mmcv),
    ('requirements', install_requirements),
    ('this project', install_project),
    ('check', check),
)
PROJECT_STEPS = STEPS[4:]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Create .venv/ with everything pinned in requirements/. Does nothing, and '
        'needs no network, when nothing is missing.'
    )
    parser.add_argument(
        '--force', action='store_true', help='rebuild .venv/ even if nothing is missing'
    )
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='only print what is missing; exit status 1 if anything is',
    )
    parser.add_argument(
        '--ops',
        choices=('auto', 'compiled', 'torchvision'),
        default='auto',
        help="where mmcv's operators come from; auto: torchvision if it can load its own "
        '(default: %(default)s)',
    )
    parser.add_argument(
        '--torch', metavar='VERSION', help='this version of torch, not the pinned one'
    )
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if sys.version_info < MIN_PYTHON:
        print(
            f'The pinned environment needs Python {".".join(map(str, MIN_PYTHON))} or newer; '
            f'this is {platform.python_version()}. Name another: "make setup PYTHON=python3.12".',
            file=sys.stderr,
        )
        return 1
    lacking = missing(args.ops, args.torch)
    steps = STEPS if lacking or args.force else () if is_installed() else PROJECT_STEPS
    if args.dry_run:
        print(''.join(f'{name}\n' for name in lacking or [name for name, _ in steps]), end='')
        return int(bool(steps))
    if not steps:
        return 0
    start = time.monotonic()
    print(f'Setting up {VENV} (log: {LOG})', flush=True)
    LOG.write_text(f'Set-up on {platform.platform()}, Python {sys.version}\nmissing: {lacking}\n')
    options = {install_torch: (args.torch,), install_mmcv: (args.ops,)}
    for number, (name, step) in enumerate(steps, 1):
        print(f'[{number}/{len(steps)}] {name} ...', end=' ', flush=True)
        step_start = time.monotonic()
        try:
            result = step(*options.get(step, ()))
        except (StepFailed, OSError) as error:
            print(f'failed after {time.monotonic() - step_start:.0f} s', flush=True)
            print(f'{error}\nLog: {LOG}', file=sys.stderr)
            return 1
        print(f'{time.monotonic() - step_start:.0f} s: {result}', flush=True)
    unfinished = READY.with_suffix('.tmp')
    unfinished.write_text(fingerprint(args.torch))
    unfinished.replace(READY)
    print(f'Ready in {time.monotonic() - start:.0f} s: {VENV}')
    return 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print('\nInterrupted. Run it again to start the set-up over.', file=sys.stderr)
        sys.exit(130)
