"""The environments that people have: which of them work, and how well.

``python -m dev.stacks`` builds the wheel of the last commit and makes each environment of
:data:`STACKS`, empty at first, then as somebody else would have made it. There it asks pip what
installing the plugin would change, installs it, and runs the doctor, tests of parity and operators,
training and testing of a detector and a segmentor by our commands and by those of mmdet and mmseg,
and an export. It writes the table of docs/install.md, each row with its commit and date; rows that
are not run stay as they are.

An environment takes 6 GB, and some minutes. It is removed at the end, unless with ``--keep``: a
later run in the same ``--folder`` then uses it again, after removing whatever a run has added.

``python -m dev.stacks "torch 2.1" --whole-suite`` also runs the default tests there, half an hour,
and writes how many pass and why others are skipped.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.pages import write_between_marks
from xcit_mm.tables import format_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'install.md'
CLASSIC = (
    'torch==2.1.2 torchvision==0.16.2 "numpy<2" "opencv-python<4.12" mmengine==0.10.7 '
    'mmdet==3.2.0 mmsegmentation==1.2.2 ftfy regex six "setuptools<70" wheel ninja'
)
FORKS = (
    'torch==2.15.0 torchvision onedl-mmcv==2.3.6 onedl-mmdetection==3.5.1 onedl-mmengine==0.10.12 '
    'onedl-mmsegmentation==1.4.2 ftfy regex six "setuptools<81"'
)
# What installing the plugin must not change.
PROTECTED = re.compile(r'(torch|torchvision|numpy|setuptools|(onedl[-_])?mm\w+)', re.IGNORECASE)
# module -> the distributions that have it, the usual one first
DISTRIBUTIONS = {
    'torch': ('torch',),
    'mmcv': ('mmcv', 'mmcv-lite', 'onedl-mmcv'),
    'mmdet': ('mmdet', 'onedl-mmdetection'),
    'mmseg': ('mmsegmentation', 'onedl-mmsegmentation'),
}
# Compiling all modules of an environment takes longer than compiling those that are imported.
PIP = {'PIP_NO_COMPILE': '1', 'PIP_DISABLE_PIP_VERSION_CHECK': '1'}
ITERATIONS = 20
SHORT = (
    f'train_cfg.max_iters={ITERATIONS} train_cfg.val_interval={ITERATIONS} '
    f'default_hooks.checkpoint.interval={ITERATIONS} default_hooks.logger.interval=1 '
    'shapes.train=32 shapes.val=4'
)
# Before torch 2.4, fused optimizers are for CUDA only; our own commands know that.
STOCK = 'optim_wrapper.optimizer.fused=False'
TASKS = {
    'detection': ('mmdet', 'mask_rcnn_xcit_n12_8_shapes.py', 'bbox segm'),
    'segmentation': ('mmseg', 'sem_fpn_xcit_n12_8_shapes.py', 'mIoU'),
}
SUITE = 'tests/compat/test_mmcv_ops.py tests/models/test_golden.py tests/models/test_timm_parity.py'
# What the default tests need besides; they skip what needs more.
SUITE_NEEDS = (
    'pytest-xdist onnx onnxruntime tifffile openmim fastapi uvicorn python-multipart '
    'prometheus-client httpx "ray[data,serve]" pyarrow scikit-learn'
)
# How far the first losses may be from those of this row.
FIRST, TOLERANCE = 'today', 1e-3
MARK, SUITE_MARK = 'stacks', 'whole suite'
COLUMNS = (
    *('environment', 'Python', *DISTRIBUTIONS, 'pip', 'doctor', 'tests', *TASKS),
    *("mmdet's tools", "mmseg's tools", 'export', 'commit', 'date'),
)


@dataclass(frozen=True)
class Stack:
    """An environment as somebody has it.

    Args:
        python (str): The version of Python.
        packages (str): What pip installs before the plugin; empty if the plugin's extras bring it.
        mmcv (str): The version of mmcv to compile; empty for none.
        edits (str): A shell command that makes packages accept a newer mmcv, as people do.
        has_export (bool): Whether deployment is promised there.
        other_losses (str): Why the first losses differ from those of the first row.
    """

    python: str
    packages: str = ''
    mmcv: str = ''
    edits: str = ''
    has_export: bool = True
    other_losses: str = ''

    @property
    def has_openmmlab(self) -> bool:
        """Return whether the packages bring OpenMMLab's; otherwise the plugin's extras do."""
        return 'mmeng' in self.packages


ACCEPT_MMCV = (
    "sed -i \"s/_version = '2.2.0'/_version = '2.3.0'/; s/^MMCV_MAX = .*/MMCV_MAX = '2.3.0'/\" "
    '$VENV/lib/python*/site-packages/mmdet/__init__.py '
    '$VENV/lib/python*/site-packages/mmseg/__init__.py'
)
STACKS = {
    'today': Stack('3.12'),
    'torch 2.1': Stack('3.10', CLASSIC, '2.1.0', '', False, 'other dropout'),
    'forks': Stack('3.12', FORKS, other_losses='weights drawn later'),
    'torch 2.1, mmcv 2.2': Stack('3.10', CLASSIC, '2.2.0', ACCEPT_MMCV, False, 'other dropout'),
    'oldest torch of the extras': Stack(
        '3.12', 'torch==2.6.0 torchvision', has_export=False, other_losses='other dropout'
    ),
    'oldest Python': Stack('3.10'),
    'newest Python': Stack('3.13'),
}


class Failed(Exception):
    """A command that failed."""


@dataclass
class Environment:
    """One environment, the folder in which commands are tried, and its log; all are new.

    Args:
        name (str): A key of :data:`STACKS`.
        folder (Path): Where it is made.
        clone (Path): A clone of the commit, with its wheel and its tests.
        reference (dict): The row of the table with which the first losses are compared.
    """

    name: str
    folder: Path
    clone: Path
    reference: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stack = STACKS[self.name]
        self.root = self.folder / re.sub(r'\W+', '_', self.name)
        self.venv, self.empty = self.root / 'venv', self.root / 'empty'
        self.log = self.folder / f'{self.root.name}.log'
        (self.wheel,) = self.clone.glob('dist/*.whl')
        # How the environment is made. It is written at the end, with the packages that it then has.
        self.recipe, self.made = repr(self.stack), self.root / 'made.json'
        if not self.stack.has_openmmlab:
            self.recipe += (self.clone / 'setup.py').read_text(encoding='utf-8')
        shutil.rmtree(self.empty, ignore_errors=True)
        self.empty.mkdir(parents=True)

    def examine(self) -> dict[str, str]:
        """Make the environment and run all parts; return a row of the table."""
        row = {'environment': self.name, 'Python': self.stack.python}
        parts: dict[str, Callable[[], str]] = {
            'environment': self.create,
            'pip': self.try_pip,
            'doctor': lambda: self.run('xcit-mm doctor') and 'ok',
            'tests': self.try_tests,
            **{task: lambda task=task: self.try_task(task) for task in TASKS},  # type: ignore[misc]
            "mmdet's tools": lambda: self.try_stock('detection'),
            "mmseg's tools": lambda: self.try_stock('segmentation'),
            'export': self.try_export,
        }
        for title, part in parts.items():
            start = time.monotonic()
            print(f'{self.name}: {title} ...', end=' ', flush=True)
            try:
                result = part()
            except Failed as error:
                result = f'failed: {error}'
            print(f'{result} ({time.monotonic() - start:.0f} s)', flush=True)
            if title != 'environment':
                row[title] = result
            elif result.startswith('failed'):
                return row | {'pip': result}
            else:
                row |= {name: self.version(name) for name in DISTRIBUTIONS}
        return row

    def create(self) -> str:
        """Make the environment as its owner would have, or restore it; return which."""
        if self.restore():
            return 'restored'
        shutil.rmtree(self.venv, ignore_errors=True)
        self.run(f'python{self.stack.python} -m venv {self.venv}')
        if self.stack.packages:
            self.run(f'pip install -q {self.stack.packages}')
        if self.stack.mmcv:
            self.compile_mmcv()
        if not self.stack.has_openmmlab:
            self.run(f'pip install -q "{self.wheel}[det,seg,lite]"')
            self.run('pip uninstall -q -y xcit_mm')
        if self.stack.edits:
            self.run(self.stack.edits)
        self.made.write_text(json.dumps([self.recipe, self.packages()]), encoding='utf-8')
        return 'made'

    def restore(self) -> bool:
        """Remove what a run added to a kept environment; return whether it is as it was made."""
        recipe, packages = json.loads(self.made.read_bytes()) if self.made.is_file() else ('', {})
        if recipe != self.recipe:
            return False
        if added := self.packages().keys() - packages.keys():
            self.run(f'pip uninstall -q -y {" ".join(added)}')
        return self.packages() == packages

    def packages(self) -> dict[str, str]:
        """Return the versions of all installed packages."""
        items = json.loads(self.run('pip list --format json').strip().splitlines()[-1])
        return {item['name']: item['version'] for item in items}

    def compile_mmcv(self) -> None:
        """Compile mmcv as ``make setup`` does, or take the wheel from the user's cache."""
        settings = (
            f'import setup_env as s; from pathlib import Path; s.VENV = Path("{self.venv}"); '
            f's.PYTHON = s.VENV / "bin/python"; s.MMCV_VERSION = "{self.stack.mmcv}"; '
            f's.SITE = next(s.VENV.glob("lib/python*/site-packages")); s.LOG = Path("{self.log}"); '
            'print(s.install_mmcv("compiled"))'
        )
        self.run(f"PYTHONPATH={self.clone}/requirements python -c '{settings}'")

    def try_pip(self) -> str:
        """Ask pip what the plugin would change, then install it."""
        report = self.root / 'report.json'
        self.run(f'pip install -q --dry-run --report {report} {self.wheel}')
        names = [item['metadata']['name'] for item in json.loads(report.read_text())['install']]
        changed = [name for name in names if PROTECTED.fullmatch(name)]
        if changed:
            raise Failed(f'would change {", ".join(changed)}')
        self.run(f'pip install -q {self.wheel}')
        # For the parts below; they must not change the environment either.
        self.run('pip freeze --exclude xcit_mm > constraints.txt')
        tools = 'pytest hypothesis "timm>=1.0"'
        # torch 2.1 says that it is too old before it needs them.
        tools += '' if self.stack.packages == CLASSIC else ' onnx onnxscript onnxruntime'
        self.run(f'pip install -q -c constraints.txt {tools}')
        return 'changes nothing'

    def try_tests(self) -> str:
        output = self.run(f'python -m pytest -q -k "not test_timm or n12" {SUITE}', self.clone)
        counts = re.findall(r'^(?:=+ )?(\d+) passed', output, re.M)
        return f'{sum(map(int, counts))} passed'

    def run_whole_suite(self) -> list[dict[str, str]]:
        """Run the default tests in the clone; return the rows of a table of their results."""
        self.run(f'pip install -q -c constraints.txt {SUITE_NEEDS}')
        # The tests of commands and of packaging need an editable install.
        self.run(f'pip install -q --no-deps --no-build-isolation --editable {self.clone}')
        output = self.run('python -m pytest -q -n 2 --dist loadfile || test $? = 1', self.clone)
        passed = re.findall(r'(\d+) passed', output.strip().splitlines()[-1])
        results = Counter(passed=int(passed[0]) if passed else 0)
        for count, reason in re.findall(r'^SKIPPED \[(\d+)\] \S+ (.+)$', output, re.MULTILINE):
            results[f'skipped: {reason}'] += int(count)
        results.update(
            f'{kind.lower()}: `{test}`'
            for kind, test in re.findall(r'^(FAILED|ERROR) (\S+)', output, re.MULTILINE)
        )
        return [{'tests': str(n), 'result': result} for result, n in results.most_common()]

    def try_task(self, task: str) -> str:
        """Train and test by our commands, and compare the first losses."""
        _, config, metrics = TASKS[task]
        options = f'--work-dir work_dirs/{task} --cfg-options {SHORT}'
        config = f'xcit_mm::{task}/{config}'
        self.run(f'xcit-mm train {config} {options}')
        checkpoint = f'work_dirs/{task}/iter_{ITERATIONS}.pth'
        self.run(f'xcit-mm test {config} {checkpoint} --eval {metrics} {options}')
        (scalars,) = (self.empty / 'work_dirs' / task).glob('*/vis_data/scalars.json')
        lines = map(json.loads, scalars.read_text().splitlines())
        losses = [line['loss'] for line in lines if 'loss' in line][:2]
        shown = ', '.join(f'{loss:.4f}' for loss in losses)
        expected = shown if self.name == FIRST else self.reference.get(task, shown)
        pairs = zip(losses, map(float, expected.split(', ')), strict=True)
        if all(abs(a / b - 1) < TOLERANCE for a, b in pairs):
            return shown
        if self.stack.other_losses:
            return f'{shown} ({self.stack.other_losses})'
        raise Failed(f'{shown} instead of {expected}')

    def try_stock(self, task: str) -> str:
        """Train and test by the tools of mmdet or mmseg, with a config that imports the plugin."""
        package, config, _ = TASKS[task]
        if package == 'mmdet' and not self.stack.mmcv and not self.stack.packages.startswith(FORKS):
            return 'need a compiled mmcv'
        folder = self.run('xcit-mm --configs').strip()
        (self.empty / f'{task}.py').write_text(f'_base_ = {f"{folder}/{task}/{config}"!r}\n')
        code = f'import {package}; print({package}.__path__[0])'
        tools = Path(self.run(f'python -c "{code}"').split()[-1], '.mim', 'tools')
        options = f'--work-dir work_dirs/stock_{task} --cfg-options {SHORT} {STOCK}'
        self.run(f'python {tools}/train.py {task}.py {options}')
        if package == 'mmdet' and not self.stack.mmcv:
            return 'train; test needs a compiled mmcv'
        checkpoint = f'work_dirs/stock_{task}/iter_{ITERATIONS}.pth'
        self.run(f'python {tools}/test.py {task}.py {checkpoint} {options}')
        return 'ok'

    def try_export(self) -> str:
        """Export the segmentor; where that is not promised, it has to say so in a sentence."""
        checkpoint = f'work_dirs/segmentation/iter_{ITERATIONS}.pth'
        config = f'xcit_mm::segmentation/{TASKS["segmentation"][1]}'
        command = f'xcit-mm export {config} {checkpoint} --out model.onnx'
        if self.stack.has_export:
            self.run(command)
            return 'ok'
        output = self.run(f'{command} || test $? = 2')
        if 'tested with torch 2.13' not in output or 'Traceback' in output:
            raise Failed('it does not say that it needs a newer torch')
        return 'needs a newer torch'

    def version(self, module: str) -> str:
        """Return the version of a package, and its name if that is not the usual one."""
        packages = self.packages()
        for name in DISTRIBUTIONS[module]:
            if name in packages:
                found = packages[name]
                return found if name == DISTRIBUTIONS[module][0] else f'{name} {found}'
        raise Failed(f'{module} is not installed')

    def run(self, command: str, cwd: Path | None = None) -> str:
        """Run a command in the environment and return its output, which also goes to the log."""
        with self.log.open('a', encoding='utf-8') as file:
            file.write(f'\n$ {command}\n')
            file.flush()
            start = file.tell()
            status = subprocess.run(
                f'PATH="$VENV/bin:$PATH"; {command}',
                shell=True,
                cwd=cwd or self.empty,
                env={**os.environ, **PIP, 'VENV': str(self.venv)},
                stdout=file,
                stderr=subprocess.STDOUT,
            ).returncode
        if status:
            print(f'see {self.log}:', end=' ', flush=True)
            raise Failed(re.sub(r'\S+/', '', ' '.join(command.split()[:3])))
        return self.log.read_bytes()[start:].decode(errors='replace')


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.stacks', description=__doc__.partition('\n')[0]
    )
    parser.add_argument(
        'names', nargs='*', metavar='NAME', help=f'rows to run (default: all): {", ".join(STACKS)}'
    )
    parser.add_argument('--folder', type=Path, help='where (default: a temporary folder)')
    parser.add_argument(
        '--keep',
        action='store_true',
        help='do not remove the environments; --folder uses them again',
    )
    parser.add_argument(
        '--whole-suite',
        action='store_true',
        help='also run all default tests in the last row named',
    )
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in STACKS]:
        parser.error(f'there is no row {unknown[0]!r}; the rows are {", ".join(STACKS)}')
    names = args.names or list(STACKS)
    for version in sorted({STACKS[name].python for name in names}):
        # Not only whether there is a file: a shim of pyenv may refuse.
        if subprocess.run(f'python{version} --version', shell=True, capture_output=True).returncode:
            parser.error(f'python{version} does not run: put it on the PATH')
    folder = args.folder or Path(tempfile.mkdtemp(prefix='stacks_'))
    clone = folder.resolve() / 'clone'
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(['git', 'clone', '--quiet', str(ROOT), str(clone)], check=True)
    subprocess.run(['make', 'wheel'], cwd=clone, check=True)
    describe = ['git', 'rev-parse', '--short', 'HEAD']
    commit = subprocess.run(describe, cwd=clone, capture_output=True, text=True).stdout.strip()
    rows = read_rows()
    failed = False
    for number, name in enumerate(names, 1):
        print(f'Row {number} of {len(names)} at {commit}', flush=True)
        environment = Environment(name, folder.resolve(), clone, rows.get(FIRST, {}))
        row = environment.examine() | {'commit': commit, 'date': str(datetime.date.today())}
        failed |= any('failed' in cell for cell in row.values())
        rows = read_rows() | {name: row}
        ordered = [dict.fromkeys(COLUMNS, '-') | rows[name] for name in STACKS if name in rows]
        write_between_marks(PAGE, {MARK: f'\n{format_table(ordered, "markdown")}\n'})
        if args.whole_suite and name == names[-1]:
            print(f'{name}: whole suite ...', flush=True)
            table = format_table(environment.run_whole_suite(), 'markdown')
            text = f'`{name}` at commit {commit}:\n\n{table}\n'
            write_between_marks(PAGE, {SUITE_MARK: f'\n{text}'})
        if not args.keep:
            shutil.rmtree(environment.root)
    print(f'Logs: {folder}')
    return int(failed)


def read_rows() -> dict[str, dict[str, str]]:
    """Return the rows of the table on the page, by environment."""
    _, _, rest = PAGE.read_text(encoding='utf-8').partition(f'<!-- {MARK} -->')
    lines = [line for line in rest.partition(f'<!-- end of {MARK} -->')[0].split('\n') if line]
    cells = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


if __name__ == '__main__':
    sys.exit(main())
