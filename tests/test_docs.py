"""Compares README and docs with the code: links, names, commands, options, tables and numbers."""

import contextlib
import importlib.util
import io
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
from mmengine.config import Config

from dev import appendix, deploy_benchmark, other_models
from dev.benchmark import report
from dev.stacks import STACKS
from xcit_mm import starter
from xcit_mm.models import VARIANTS
from xcit_mm.models.variants import PATCH_SIZES
from xcit_mm.paper import paper_rows
from xcit_mm.weights import published, resolve_short_name
from xcit_mm_cli import COMMANDS, main, parse_args
from xcit_mm_cli.doctor import PACKAGES

from .models.test_numbers import BOUNDS

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob('*.md')), *sorted((ROOT / 'docs').rglob('*.md'))]
BLOCK = re.compile(r'^```(\w*)\n(.*?)^```', re.DOTALL | re.MULTILINE)

each_page = pytest.mark.parametrize('page', PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


def read(path):
    return (ROOT / path).read_text(encoding='utf-8')


def block_lines(page):
    """The lines of a page's code blocks, continued ones joined."""
    for _, block in BLOCK.findall(read(page)):
        yield from block.replace('\\\n', ' ').splitlines()


def inline_code(page):
    return [' '.join(span.split()) for span in re.findall(r'`([^`]+)`', BLOCK.sub('', read(page)))]


def table(path, heading):
    """The cells of the table that starts with a heading, without its first two lines."""
    lines = read(path).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    rows = itertools.takewhile(lambda line: line.startswith('|'), lines[start + 2 :])
    return [[cell.strip() for cell in row.strip('|').split('|')] for row in rows]


# Links and names


def anchors(page):
    titles = re.findall(r'^#+ (.+)$', read(page), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles}


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r'\]\(([^)]+)\)', read(page)):
        if target.startswith(('http://', 'https://')):
            continue
        path, _, anchor = target.partition('#')
        linked = page.parent / path if path else page
        assert linked.is_file(), target
        assert not anchor or anchor in anchors(linked), target


FOLDERS = '|'.join(p.name for p in ROOT.iterdir() if p.is_dir() and p.name[0] not in '._')
# What code names, and how to tell that it exists.
NAMES = (
    (rf'(?<![\w./:])(?!data/|work_dirs/)(?:{FOLDERS})/[\w./-]+', lambda p: (ROOT / p).exists()),
    (r'xcit_mm::([\w/]+\.py)', lambda name: (ROOT / 'configs' / name).is_file()),
    (r'xcit://([\w/]+)', resolve_short_name),
    (r'python -m ([\w.]+)', importlib.util.find_spec),
    (r'^[^#]*\bmake ([a-z-]+)', lambda target: f'\n{target}:' in read('Makefile')),
)


@each_page
def test_paths_configs_modules_targets_and_weights_exist(page):
    for line in [*block_lines(page), *inline_code(page)]:
        for pattern, exists in NAMES:
            for name in re.findall(pattern, line):
                assert 'NAME' in name or exists(name), line


# Commands and their options

# Launcher -> its command, which of its arguments that takes, and how many are the launcher's own.
LAUNCHERS = {
    'tools/dist_train.sh': ('train', [0], 2),
    'tools/dist_test.sh': ('test', [0, 1], 3),
    'tools/slurm_train.sh': ('train', [2], 4),
    'tools/slurm_test.sh': ('test', [2, 3], 4),
}


def find_command(line):
    """The name and the arguments of the command in a line of the shell, if there is one."""
    try:
        words = shlex.split(re.sub(r'\$\w+', '1', line), comments=True)
    except ValueError:  # not a line of the shell
        return None
    words = [part for word in words for part in (word.split() if 'xcit-mm ' in word else [word])]
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        if word in ('xcit-mm', 'xcit_mm_cli') and rest and not rest[0].startswith('-'):
            return rest[0], rest[1:]
        if word in LAUNCHERS:
            name, taken, own = LAUNCHERS[word]
            return name, [*(rest[i] for i in taken), *rest[own:]]
    return None


@each_page
def test_commands_parse(page):
    for line in block_lines(page):
        if (found := find_command(line)) is not None:
            try:
                parse_args(*found)
            except SystemExit:
                pytest.fail(line)


@pytest.fixture(scope='module')
def options_of():
    """The options of each command, by name."""
    found = {}
    for name in COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()) as text, pytest.raises(SystemExit):
            main([name, '--help'])
        found[name] = options(text.getvalue())
    return found


def options(text):
    return set(re.findall(r'(?<![\w-])--[a-z][a-z-]*', text))


# Of pip, torchrun, Slurm and xcit-mm itself.
OTHER_OPTIONS = {'--no-deps', '--max-restarts', '--array', '--configs', '--help'}


@each_page
def test_options_in_sentences_exist(page, options_of):
    known = OTHER_OPTIONS.union(*options_of.values())
    for folder in ('dev', 'examples', 'xcit_mm_runtime'):
        known |= options(
            ''.join(p.read_text(encoding='utf-8') for p in (ROOT / folder).rglob('*.py'))
        )
    for code in inline_code(page):
        command = re.match(r'xcit-mm ([a-z][a-z-]*)', code)
        assert options(code) <= (options_of[command[1]] if command else known), code


def test_the_list_of_commands_is_complete():
    rows = table('docs/getting_started.md', '| command |')
    assert sorted(row[0] for row in rows) == sorted(f'`xcit-mm {name}`' for name in COMMANDS)


@pytest.mark.parametrize('package', ['xcit_mm', 'xcit_mm_cli', 'xcit_mm_runtime'])
def test_no_message_says_that_pip_finds_this_package(package):
    """It is on no index: pip takes a clone or the wheel."""
    for path in (ROOT / package).rglob('*.py'):
        text = path.read_text(encoding='utf-8')
        assert not re.search(r'pip install (?:--?[\w-]+ )*"?xcit_mm\b(?!-\d)', text), path


# Tables that scripts write


def between_marks(name, text):
    return f'<!-- {name} -->\n{text}\n<!-- end of {name} -->'


def test_generated_pages_and_tables_are_what_the_scripts_give():
    """Those of the zoo are compared where it is tested."""
    numbers = json.loads(read('docs/studies/benchmark.json'))
    assert read('docs/studies/benchmark.md') == report.page_text(numbers)
    text = deploy_benchmark.page_text(json.loads(read('docs/studies/deploy.json')))
    assert between_marks('precision', text) in read('docs/studies/deploy.md')
    for mark, text in appendix.tables(json.loads(read('docs/studies/appendix.json'))).items():
        assert between_marks(mark, text) in read('docs/studies/appendix.md')
    text = between_marks(other_models.MARKS, other_models.table())
    assert text in read('docs/backbone.md')


def test_the_versions_of_torch_are_those_that_were_tried():
    rows = table('docs/install.md', '| environment ')
    pairs = [[name, stack.python] for name, stack in STACKS.items()]
    assert [row[:2] for row in rows] == [pair for pair in pairs if pair in [r[:2] for r in rows]]
    assert not any('failed' in cell for row in rows for cell in row)
    tried = sorted(int(row[2].split('.')[1]) for row in rows)
    (versions,) = [package.tested for package in PACKAGES if package.module == 'torch']
    oldest, end = map(int, re.findall(r'2\.(\d+)', versions))
    assert (tried[0], tried[-1]) == (oldest, end - 1)
    assert f'| torch | 2.{oldest} to 2.{end - 1}.' in read('docs/install.md')
    assert f"'torch>=2.6,<2.{end}'" in read('setup.py')


# Lists and numbers


def test_configs_are_those_that_the_page_lists():
    listed = set()
    for _, *cells in table('docs/getting_started.md', '| head | small data |'):
        for pattern in re.findall(r'`(.*?)`', ' '.join(cells)):
            for arch, patch in itertools.product(VARIANTS, PATCH_SIZES):
                listed.add(pattern.format(arch=arch, patch=patch))
    folders = ('detection', 'segmentation')
    paths = [path for folder in folders for path in ROOT.glob(f'configs/{folder}/*.py')]
    assert listed == {path.name for path in paths}
    for_paper = [p for p in paths if not p.stem.endswith(('_shapes', '_bccd', '_camvid'))]
    assert f'{len(for_paper)} configs cover' in read('README.md')


def test_the_table_of_compat_is_complete():
    files = [*ROOT.glob('xcit_mm/compat/*.py'), *ROOT.glob('xcit_mm/compat/*/__init__.py')]
    modules = {p.parent.name if p.stem == '__init__' else p.stem for p in files} - {'compat'}
    assert {row[0].strip('`') for row in table('SECURITY.md', '| module |')} == modules


def test_tolerances_are_those_of_the_tests():
    claimed = {}
    for _, tolerance, command in table('docs/studies/exactness.md', '| compared with |'):
        for path in re.findall(r'tests/\S+\.py', command):
            claimed.setdefault(path, set()).add(float(tolerance))
    assert len(claimed) == 2
    for path, tolerances in claimed.items():
        assert tolerances == {float(bound) for bound in re.findall(r'< (1e-\d)', read(path))}


def stated(page, pattern):
    """The numbers in the groups of a pattern, which must occur exactly once in a page."""
    (found,) = re.findall(pattern, ' '.join(read(page).split()))
    return [float(number) for number in ([found] if isinstance(found, str) else found)]


def in_setup(name):
    """The numbers of a constant of the setup script."""
    value = re.search(rf'^{name} = (.*)$', read('requirements/setup_env.py'), re.MULTILINE)[1]
    return re.findall(r'\d+', value)


def test_numbers_of_the_readme():
    assert stated('README.md', r'all (\d+) published weight files') == [len(published())]
    assert stated('README.md', r'Python 3\.(\d+) or newer') == [int(in_setup('MIN_PYTHON')[1])]
    bars = json.loads(read('docs/studies/benchmark.json'))['bars']
    measured = {bar['what']: bar['numbers'] for bar in bars}
    for step, speed, memory in (
        ('inference', 'S12/8 inference, 800x1344', 'above the weights, S12/8 inference'),
        ('training step', 'S12/8 training step, 800x1344', 'of that step, S12/8'),
    ):
        wanted = measured[speed]['speedup'], measured[f'peak memory {memory}']['ratio']
        found = stated('README.md', rf'S12/8 {step}[^|]*\| ([\d.]+)x the speed, ([\d.]+)x the mem')
        assert found == pytest.approx(wanted, abs=0.005)


def test_numbers_of_the_docs():
    page = 'docs/getting_started.md'
    for head in ('detection/mask_rcnn', 'segmentation/sem_fpn'):
        config = Config.fromfile(ROOT / f'configs/{head}_xcit_n12_8_shapes.py')
        found = stated(page, rf'{Path(head).name}_xcit_n12_8_shapes/iter_(\d+)\.pth')
        assert found == [config.train_cfg.max_iters]
    config = Config.fromfile(ROOT / 'configs/detection/mask_rcnn_xcit_s12_8_3x.py')
    found = stated('docs/distributed.md', r'batch of (\d+) images: 8 processes with (\d+) images')
    assert found == [config.auto_scale_lr.base_batch_size, config.train_dataloader.batch_size]
    widths = r'width of all levels \|' + r' (\d+) \|' * len(VARIANTS)
    assert stated('docs/backbone.md', widths) == [v.embed_dims for v in VARIANTS.values()]
    errors = stated('docs/backbone.md', r'24 megapixels \| ([\d.]+) % \| ([\d.]+) %')
    assert errors == [100 * bound for bound in BOUNDS.values()]
    found = stated('docs/troubleshooting.md', r'install mmcv (\d+)\.(\d+)\.(\d+)')
    assert found == [float(part) for part in in_setup('MMCV_VERSION')]


def test_numbers_of_the_paper_are_those_of_its_tables():
    page = 'docs/pretraining.md'
    rows = table(page, '| backbone | CIFAR-10')
    wanted = {size: list(row.values()) for size, row in paper_rows('transfer').items()}
    assert {row[0]: [float(cell) for cell in row[1:]] for row in rows} == wanted
    found = {}
    for name, *cells in table(page, '| ablation | S12/16'):
        for size, cell in zip(('S12/16', 'S12/8'), cells, strict=True):
            if cell:
                key = f'{size} {name.strip("`")}'.removesuffix(' none')
                found[key] = None if cell == 'failed' else float(cell)
    assert found == {key: row['top1'] for key, row in paper_rows('ablations').items()}


def test_numbers_of_the_recipe_for_small_data():
    page = 'docs/custom_data.md'
    *rates, images, labels, objects = table(page, '| | from ImageNet')
    rates = [tuple(map(float, row[1:])) for row in rates]
    assert rates == list(starter.LEARNING_RATES.values())
    numbers = [starter.SEEN['detection'], starter.SEEN['segmentation'], starter.OBJECTS_SEEN]
    assert [tuple(map(int, row[1:])) for row in (images, labels, objects)] == numbers
    batches = stated(
        page,
        r'Batch.\*\* Detection: (\d+) on a CPU and (\d+) on a GPU; segmenta\w+: (\d+) and (\d+)',
    )
    assert batches == [size for sizes in starter.BATCH_SIZES.values() for size in sizes]
    assert stated(page, r'at least (\d+) and at most (\d+) times') == list(starter.EPOCHS)
    sides = stated(page, r'side of (\d+) pixels for detection and (\d+) .*? \((\d+) and (\d+) on')
    assert sides == [side[gpu] for gpu in (1, 0) for side in starter.SHORT_SIDES.values()]


@pytest.mark.parametrize(
    'message',
    [
        'was refused: it contains Python objects',
        "mmcv's operator ",
        'finds all such files',
        'is not a category',
        'These weights',
        'could not be written: ',
        'is not finite',
        'The labels seem to number objects, not classes',
    ],
)
def test_messages_in_the_troubleshooting_table_are_ours(message):
    assert message in read('docs/troubleshooting.md')
    assert any(message in path.read_text(encoding='utf-8') for path in ROOT.glob('xcit_mm/**/*.py'))
