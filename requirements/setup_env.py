#!/usr/bin/env python3
"""Creates ``.venv/``: the pinned environment in which the tests, the demo and the tools run.

mmcv 2.1.0 is released as source only. Compiling its operators takes 19 minutes on two cores;
precompiling the header that nearly all of its files include reduces that to 3. The wheel is kept in
the user's cache, so each machine compiles it only once.

Only the standard library is used here: this file runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / 'requirements'
VENV = ROOT / '.venv'
LOG = ROOT / '.setup.log'
# Written last. An environment without it was interrupted and is rebuilt, never repaired.
READY = VENV / 'xcit_mm-ready'
# Written when this project is installed in it. If setup.py changes, only that step is repeated.
INSTALLED = VENV / 'xcit_mm-installed'
MMCV_VERSION = '2.1.0'
MIN_PYTHON = (3, 11)

# A precompiled header must be built and used with exactly the same flags; setting CFLAGS replaces
# Python's own.
CXX_FLAGS = '-DNDEBUG -fwrapv -O2 -w'

# Pattern in a failed step's output -> what to do about it.
ADVICE = (
    (r'Python\.h: No such file', 'Install the Python headers: "apt-get install python3-dev" '
     'on Debian and Ubuntu, "dnf install python3-devel" on Fedora.'),
    (r'ensurepip is not available|No module named (venv|ensurepip)', 'Install venv: '
     '"apt-get install python3-venv" on Debian and Ubuntu.'),
    (r'No space left on device', 'Free some disk space: the environment takes about 3 GB.'),
    (r'Killed signal|Cannot allocate memory|cc1plus: out of memory', 'Free some memory, or '
     'compile one file at a time: "MAX_JOBS=1 make setup".'),
    (r'No matching distribution found|Could not find a version|Temporary failure|'
     r'ConnectionError|Read timed out|Network is unreachable',
     'Check that pip can reach a package index ("pip config list" shows which), then run it '
     'again.'),
)  # fmt: skip


class StepFailed(Exception):
    """A step failed; the message says what to do."""


def site_packages() -> Path:
    version = f'python{sys.version_info.major}.{sys.version_info.minor}'
    return VENV / 'lib' / version / 'site-packages'


def venv_python() -> Path:
    return VENV / 'bin' / 'python'


def pinned_versions() -> dict[str, str]:
    """The versions that the requirements files ask for, by normalised name."""
    pins = {'mmcv': MMCV_VERSION}
    for file in sorted(REQUIREMENTS.glob('*.txt')):
        for name, version in re.findall(r'^([\w.-]+)==([^\s;]+)', file.read_text(), re.M):
            pins[name.lower().replace('_', '-')] = version
    return pins


def fingerprint() -> str:
    """Changes whenever the environment has to be rebuilt."""
    digest = hashlib.sha256(f'{sys.version} {ROOT}'.encode())
    for file in [*sorted(REQUIREMENTS.glob('*.txt')), Path(__file__)]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def project_fingerprint() -> str:
    """Changes whenever this project has to be installed again."""
    return hashlib.sha256((ROOT / 'setup.py').read_bytes()).hexdigest()


def is_installed() -> bool:
    """Whether this project is installed as its setup.py says now."""
    found = importlib.metadata.distributions(name='xcit_mm', path=[str(site_packages())])
    same = INSTALLED.is_file() and INSTALLED.read_text() == project_fingerprint()
    return same and any(found)


def missing() -> list[str]:
    """What the environment lacks, read from its files: no interpreter is started."""
    if not READY.is_file() or READY.read_text() != fingerprint():
        return ['a finished set-up for these requirements']
    found = {
        dist.metadata['Name'].lower().replace('_', '-'): dist.version
        for dist in importlib.metadata.distributions(path=[str(site_packages())])
    }
    # A local version such as 2.13.0+cpu satisfies the pin 2.13.0.
    return [
        f'{name} {version}'
        for name, version in pinned_versions().items()
        if name not in found or found[name].partition('+')[0] != version
    ]


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
    output = LOG.read_text(errors='replace')[start:]
    advice = [text for pattern, text in ADVICE if re.search(pattern, output)]
    raise StepFailed(
        '\n'.join(
            [
                *('  | ' + line[:200] for line in output.splitlines()[-20:]),
                f'"{" ".join(words[:4])} ..." failed with status {status}.',
                advice[0] if advice else 'The log has the whole output.',
            ]
        )
    )


def pip(*arguments: str | Path) -> None:
    run(venv_python(), '-m', 'pip', '--disable-pip-version-check', *arguments)


def make_venv() -> str:
    if VENV.exists():
        shutil.rmtree(VENV)
    run(sys.executable, '-m', 'venv', VENV)
    return f'Python {platform.python_version()}'


def install_torch() -> str:
    pip('install', '-r', REQUIREMENTS / 'build.txt')
    return f'torch {torch_version()}'


def torch_version() -> str:
    dists = importlib.metadata.distributions(name='torch', path=[str(site_packages())])
    return next(iter(dists)).version


def wheel_cache() -> Path:
    """Where mmcv's wheel for this Python, this torch and this processor is kept."""
    base = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
    key = f'mmcv{MMCV_VERSION}-torch{torch_version()}-{sys.implementation.cache_tag}'
    return base / 'xcit_mm' / 'wheels' / f'{key}-{platform.system()}-{platform.machine()}'.lower()


def cached_wheel() -> Path | None:
    return next(iter(wheel_cache().glob('mmcv-*.whl')), None)


def install_mmcv() -> str:
    wheel = cached_wheel()
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
            '"xcode-select --install" on macOS; or name it with CXX=...'
        )
    build = VENV / 'mmcv-build'
    build.mkdir()
    env = {
        'MMCV_WITH_OPS': '1',
        'MAX_JOBS': os.environ.get('MAX_JOBS', str(os.cpu_count() or 1)),
        'PATH': f'{VENV / "bin"}{os.pathsep}{os.environ["PATH"]}',
    }
    if 'clang' not in version_of(compiler):
        env['CFLAGS'] = precompile_header(compiler, build)
    command: list[str | Path] = [venv_python(), '-m', 'pip', 'wheel', '--no-build-isolation']
    command += [
        '--no-deps',
        '--no-cache-dir',
        '--no-binary',
        'mmcv',
        '--verbose',
        '--wheel-dir',
        build,
    ]
    run(*command, f'mmcv=={MMCV_VERSION}', env=env)
    built = next(build.glob('mmcv-*.whl'))
    cached = wheel_cache() / built.name
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Copied under another name first: a wheel in the cache is always complete.
    copy = shutil.copy(built, cached.with_suffix(f'.{os.getpid()}'))
    os.replace(copy, cached)
    shutil.rmtree(build)
    return cached


def version_of(compiler: str) -> str:
    return subprocess.run([compiler, '--version'], capture_output=True, text=True).stdout.lower()


def precompile_header(compiler: str, build: Path) -> str:
    """Compile the header that takes most of the time; return the flags that use it."""
    header = build / 'torch_types.h'
    header.write_text('#include <torch/types.h>\n')
    code = (
        'import sysconfig; from torch.utils.cpp_extension import include_paths;'
        'print(*include_paths("cpu"), sysconfig.get_path("include"), sep="\\n")'
    )
    paths = subprocess.run(
        [venv_python(), '-c', code], capture_output=True, text=True, check=True
    ).stdout.split('\n')
    includes = [f'-I{path}' for path in paths if path]
    flags = [*CXX_FLAGS.split(), '-fPIC', '-std=c++17']
    run(compiler, *flags, *includes, '-x', 'c++-header', header, '-o', f'{header}.gch')
    return f'{CXX_FLAGS} -Winvalid-pch -include {header}'


def install_requirements() -> str:
    pip('install', '-r', REQUIREMENTS / 'runtime.txt', '-r', REQUIREMENTS / 'dev.txt',
        '-c', REQUIREMENTS / 'build.txt')  # fmt: skip
    return 'mmengine, mmdet, mmsegmentation, timm and the development tools'


def install_project() -> str:
    INSTALLED.unlink(missing_ok=True)
    pip('install', '--no-deps', '--no-build-isolation', '--editable', ROOT)
    INSTALLED.write_text(project_fingerprint())
    return 'xcit_mm, editable'


def check() -> str:
    run(venv_python(), '-m', 'xcit_mm')
    return 'detection and segmentation can run'


STEPS: tuple[tuple[str, Callable[[], str]], ...] = (
    ('virtual environment', make_venv),
    ('torch and build tools', install_torch),
    ('mmcv (compiled once per machine, about 4 minutes)', install_mmcv),
    ('requirements', install_requirements),
    ('this project', install_project),
    ('check', check),
)
PROJECT_STEPS = STEPS[4:]


def main() -> int:
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
    args = parser.parse_args()
    if sys.version_info < MIN_PYTHON:
        print(
            f'The pinned environment needs Python {".".join(map(str, MIN_PYTHON))} or newer; '
            f'this is {platform.python_version()}. Name another: "make setup PYTHON=python3.12".',
            file=sys.stderr,
        )
        return 1
    lacking = missing()
    steps = STEPS if lacking or args.force else () if is_installed() else PROJECT_STEPS
    if args.dry_run:
        print(''.join(f'{name}\n' for name in lacking or [name for name, _ in steps]), end='')
        return int(bool(steps))
    if not steps:
        return 0
    start = time.monotonic()
    print(f'Setting up {VENV} (log: {LOG})', flush=True)
    LOG.write_text(f'Set-up on {platform.platform()}, Python {sys.version}\nmissing: {lacking}\n')
    for number, (name, step) in enumerate(steps, 1):
        print(f'[{number}/{len(steps)}] {name} ...', end=' ', flush=True)
        step_start = time.monotonic()
        try:
            result = step()
        except (StepFailed, OSError) as error:
            print(f'failed after {time.monotonic() - step_start:.0f} s', flush=True)
            print(f'{error}\nLog: {LOG}', file=sys.stderr)
            return 1
        print(f'{time.monotonic() - step_start:.0f} s: {result}', flush=True)
    unfinished = READY.with_suffix('.tmp')
    unfinished.write_text(fingerprint())
    unfinished.replace(READY)
    pins = pinned_versions()
    names = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmsegmentation', 'timm')
    print(
        f'Ready in {time.monotonic() - start:.0f} s: '
        + ', '.join(f'{name} {pins[name]}' for name in names)
        + ' and xcit_mm in .venv/'
    )
    return 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print('\nInterrupted. Run it again to start the set-up over.', file=sys.stderr)
        sys.exit(130)
