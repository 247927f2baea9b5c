"""Checks what README and docs state: numbers, lists, commands, options, paths and links."""

import ast
import importlib.util
import inspect
import itertools
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

from xcit_mm import starter
from xcit_mm.engine import NonFiniteHook
from xcit_mm.models import VARIANTS
from xcit_mm.models.variants import PATCH_SIZES
from xcit_mm.stats import PAPER_HEADS
from xcit_mm.weights import published, resolve_short_name
from xcit_mm.weights.formats import RULES

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob('*.md')), *sorted((ROOT / 'docs').glob('*.md'))]
NUMBERS = dict(one=1, two=2, three=3, four=4, five=5, six=6, seven=7, eight=8, nine=9, ten=10)
NUMBERS['once'] = 1
NUMBER = r'(?:\d+|' + '|'.join(NUMBERS) + ')'

each_page = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)


def read(path):
    return (ROOT / path).read_text(encoding='utf-8')


def number(text):
    return NUMBERS.get(text) or int(text)


def code(page):
    """The code of a page: lines of its blocks, with continued ones joined, and inline code."""
    text = page.read_text(encoding='utf-8')
    blocks = re.findall(r'^```\w*\n(.*?)^```', text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace('\\\n', ' ').splitlines()]
    rest = re.sub(r'^```.*?^```', '', text, flags=re.DOTALL | re.MULTILINE)
    return lines + [' '.join(span.split()) for span in re.findall(r'`([^`]+)`', rest)]


def table(path, heading):
    """The cells of the table that starts with a heading, without its first two lines."""
    lines = read(path).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    rows = itertools.takewhile(lambda line: line.startswith('|'), lines[start + 2 :])
    return [[cell.strip() for cell in row.strip('|').split('|')] for row in rows]


# Links and paths


def anchors(page):
    titles = re.findall(r'^#+ (.+)$', page.read_text(encoding='utf-8'), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles}


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r'\]\(([^)]+)\)', page.read_text(encoding='utf-8')):
        if target.startswith(('http://', 'https://')):
            continue
        path, _, anchor = target.partition('#')
        linked = page.parent / path if path else page
        assert linked.is_file(), target
        assert not anchor or anchor in anchors(linked), target


@each_page
def test_paths_exist(page):
    folders = '|'.join(p.name for p in ROOT.iterdir() if p.is_dir() and p.name[0] not in '._')
    for line in code(page):
        for path in re.findall(rf'(?<![\w./:])(?:{folders})/[\w./-]+', line):
            if path.startswith(('data/', 'work_dirs/')) or 'NAME' in path:
                continue
            assert (ROOT / path).exists(), path
        for name in re.findall(r'xcit_mm::([\w/]+\.py)', line):
            assert 'NAME' in name or (ROOT / 'configs' / name).is_file(), name


@each_page
def test_weights_have_an_address(page):
    for name in re.findall(r'xcit://([\w/]+)', page.read_text(encoding='utf-8')):
        assert name == 'NAME' or resolve_short_name(name), name


# Commands and their options


def make_targets():
    """The targets of the Makefile, with their descriptions."""
    return dict(re.findall(r'^([a-z-]+):.*?## (.*)$', read('Makefile'), re.MULTILINE))


def console_script():
    found = re.search(r'xcit-mm *= *([\w.]+):(\w+)', read('setup.py'))
    assert found, 'setup.py must declare the console script xcit-mm'
    return getattr(importlib.import_module(found[1]), found[2])


@pytest.fixture
def help_of(capsys, monkeypatch):
    """A function that returns the help of ``tools/NAME.py`` or ``xcit-mm NAME``."""

    def ask(command):
        monkeypatch.setattr(sys, 'argv', [command, '--help'])
        capsys.readouterr()
        try:
            if command.startswith('tools/'):
                runpy.run_path(str(ROOT / command), run_name='__main__')
            else:
                console_script()([*command.split()[1:], '--help'])
        except SystemExit as end:
            assert not end.code, command
        return capsys.readouterr().out

    return ask


def commands(help_of):
    """The commands of the console script."""
    return re.findall(r'^  ([a-z-]+)  ', help_of('xcit-mm'), re.MULTILINE)


def options(text):
    return set(re.findall(r'(?<![\w-])--[a-z][a-z-]*', text))


@each_page
def test_make_targets_exist(page):
    for line in code(page):
        for target in re.findall(r'\bmake ([a-z-]+)', line.partition('#')[0]):
            assert target in make_targets(), target


@each_page
def test_modules_can_be_run(page):
    for line in code(page):
        for name in re.findall(r'python -m ([\w.]+)', line):
            if not name.endswith('.NAME'):
                assert importlib.util.find_spec(name), name


@each_page
def test_commands_have_the_options_that_are_shown(page, help_of):
    launched = {'dist_train.sh': 'train.py', 'dist_test.sh': 'test.py'}
    launched |= {'slurm_train.sh': 'train.py', 'slurm_test.sh': 'test.py'}
    for line in code(page):
        line = line.partition(' #')[0]
        for tool in re.findall(r'tools/(\w+\.(?:py|sh))', line):
            known = options(help_of(f'tools/{launched.get(tool, tool)}'))
            # What is before it belongs to a launcher.
            assert options(line.partition(f'tools/{tool}')[2]) <= known, line
        for command in re.findall(r'xcit-mm ([a-z][a-z-]*)', line):
            shown = options(line.partition(f'xcit-mm {command}')[2])
            assert shown <= options(help_of(f'xcit-mm {command}')), line


def test_every_option_in_a_sentence_belongs_to_a_command(help_of):
    asked = ['xcit-mm', *(f'xcit-mm {name}' for name in commands(help_of))]
    known = set().union(*(options(help_of(command)) for command in asked))
    for folder in ('dev', 'examples', 'xcit_mm_runtime'):
        for path in (ROOT / folder).rglob('*.py'):
            known |= options(path.read_text(encoding='utf-8'))
    known |= {'--no-deps'}  # of pip
    known |= {'--nproc-per-node', '--max-restarts'}  # of torchrun
    known |= {'--ntasks', '--gpus-per-task', '--array', '--wrap'}  # of Slurm
    for page in PAGES:
        shown = set().union(*(options(line) for line in code(page)))
        assert shown <= known, page.name


def test_the_list_of_commands_is_complete(help_of):
    known = set(commands(help_of))
    rows = table('docs/getting_started.md', '| in a clone | installed |')
    shown = {}
    for tool, command in rows:
        tool, command = tool.strip('`').removeprefix('python '), command.strip('`')
        assert options(help_of(tool)) == options(help_of(command))
        shown[Path(tool).name] = command.removeprefix('xcit-mm ')
    assert set(shown) == {path.name for path in (ROOT / 'tools').glob('*.py')}
    assert known == {*shown.values(), 'shapes', 'doctor'}
    (listed,) = re.findall(r'console script: (.*?)\. The same', read('CHANGELOG.md'), re.DOTALL)
    assert set(re.findall(r'`(?:xcit-mm )?([a-z-]+)`', listed)) == known


@pytest.mark.parametrize('folder', ['docs', 'xcit_mm', 'xcit_mm_cli', 'xcit_mm_runtime', 'dev'])
def test_nothing_says_that_pip_finds_this_package(folder):
    """It is on no index: pip takes a clone or the wheel."""
    files = [p for p in (ROOT / folder).rglob('*') if p.suffix in ('.py', '.md')]
    for path in [*files, ROOT / 'README.md']:
        text = path.read_text(encoding='utf-8')
        found = re.findall(r'pip install (?:--?[\w-]+ )*"?xcit_mm\b(?!-\d)\S*', text)
        assert path.name == 'install.md' or not found, path
    assert 'so `pip install xcit_mm` does not work' in ' '.join(read('docs/install.md').split())


@each_page
def test_pages_that_name_mim_train_say_what_it_needs(page):
    text = page.read_text(encoding='utf-8')
    assert 'mim train' not in text or re.search(r'compiled\s+mmcv', text)


def test_one_page_has_the_scores_of_the_demo():
    from dev.deploy_benchmark import page_text

    assert table('README.md', '| box mAP | mask mAP | mIoU |')
    text = page_text(json.loads(read('docs/deploy.json')))
    assert f'<!-- precision -->\n{text}' in read('docs/deploy.md')
    assert 'change of box mAP' in text and 'change of mIoU' in text
    for page in ('docs/deploy.md', 'docs/getting_started.md'):
        assert '[README](../README.md#install-and-see-it-work)' in read(page)
        assert not re.search(r"^\|.*\b(the demo's data|PyTorch +\| \d)", read(page), re.MULTILINE)


# Durations: the Makefile says how long each target takes.

DURATION = re.compile(rf'half an hour|an hour|(?<![\d.]){NUMBER} minutes?')


def minutes(text):
    """The first duration in a text, in minutes."""
    found = DURATION.search(text)
    if found is None:
        return None
    fixed = {'half an hour': 30, 'an hour': 60}
    return fixed.get(found[0]) or number(found[0].split()[0])


def make_minutes():
    """(target, quick) -> minutes, according to the Makefile."""
    found = {}
    for target, text in make_targets().items():
        quick = re.search(r'\(QUICK=1:([^)]*)\)', text)
        if quick:
            found[target, True] = number(re.search(rf'\b{NUMBER}\b', quick[1])[0])
            text = text.replace(quick[0], '')
        found[target, False] = minutes(text)
    return found


def test_durations_are_those_of_the_makefile():
    expected, seen = make_minutes(), set()
    for page in PAGES:
        for line in page.read_text(encoding='utf-8').splitlines():
            command = re.search(r'\bmake ([a-z-]+)( QUICK=1)?', line)
            if command and minutes(line) is not None:
                key = command[1], bool(command[2])
                assert minutes(line) == expected[key], f'{page.name}: {line}'
                seen.add((page.name, *key))
    assert seen >= {
        ('README.md', 'setup', False),
        ('README.md', 'demo', False),
        ('README.md', 'demo', True),
        ('README.md', 'benchmark', False),
        ('README.md', 'benchmark', True),
        ('CONTRIBUTING.md', 'test', False),
        ('CONTRIBUTING.md', 'test-long', False),
        ('CONTRIBUTING.md', 'soak', False),
    }


def test_durations_in_help_are_those_of_the_makefile(help_of):
    expected = make_minutes()
    benchmark = ''.join(
        path.read_text(encoding='utf-8')
        for path in ROOT.glob('dev/benchmark/*.py')
        if '--quick' in path.read_text(encoding='utf-8')
    )
    assert benchmark
    for target, text in (('demo', help_of('tools/demo.py')), ('benchmark', benchmark)):
        allowed = {expected[target, quick] for quick in (False, True)}
        assert {minutes(found) for found in DURATION.findall(text)} <= allowed, target


# Numbers and lists


def stated(path, pattern):
    """The numbers in the groups of a pattern, which must occur exactly once in a page."""
    (found,) = re.findall(pattern, ' '.join(read(path).split()))
    return tuple(number(text) for text in ([found] if isinstance(found, str) else found))


def test_configs_are_those_that_the_pages_list():
    paths = [p for d in ('detection', 'segmentation') for p in ROOT.glob(f'configs/{d}/*.py')]
    (archs,) = re.findall(r'`\{arch\}` is (.*?), and `\{patch\}`', read('docs/getting_started.md'))
    assert re.split(', | or ', archs) == list(VARIANTS)
    assert stated('docs/getting_started.md', r'`\{patch\}` is (\d+) or (\d+)\.') == (16, 8)
    rows = table('docs/getting_started.md', '| head | small data |')
    listed = set()
    for _, *cells in rows:
        for pattern in re.findall(r'`(.*?)`', ' '.join(cells)):
            for arch, patch in itertools.product(VARIANTS, PATCH_SIZES):
                listed.add(pattern.format(arch=arch, patch=patch))
    assert listed == {path.name for path in paths}
    for_paper = [n for n in listed if not n.endswith(('_shapes.py', '_bccd.py', '_camvid.py'))]
    assert stated('README.md', r'all (\d+) sizes and both patch sizes: (\d+) configs') == (
        len(VARIANTS),
        len(for_paper),
    )
    readme = ' '.join(read('README.md').split())
    assert all(head in readme for head, *_ in rows)


def test_number_of_files_and_formats():
    assert stated('README.md', r'all (\d+) published weight files') == (len(published()),)
    assert stated('CHANGELOG.md', rf'load in ({NUMBER}) formats') == (len(RULES),)


def test_widths_are_those_of_the_variants():
    (cells,) = table('docs/backbone.md', '| arch | n12 ')
    assert [int(cell) for cell in cells[1:]] == [v.embed_dims for v in VARIANTS.values()]


def test_numbers_of_the_demo():
    detector, segmentor = (
        Config.fromfile(ROOT / 'configs' / name)
        for name in (
            'detection/mask_rcnn_xcit_n12_8_shapes.py',
            'segmentation/sem_fpn_xcit_n12_8_shapes.py',
        )
    )
    assert stated('README.md', rf'On (\d+) held-out images with ({NUMBER}) classes') == (
        detector.shapes.val,
        len(detector.metainfo.classes),
    )
    page = 'docs/getting_started.md'
    lengths = detector.train_cfg.max_iters, segmentor.train_cfg.max_iters
    assert stated(page, r'mask_rcnn\w+/iter_(\d+)\.pth') == lengths[:1]
    assert stated(page, r'sem_fpn\w+/iter_(\d+)\.pth') == lengths[1:]
    assert stated(page, r'the same (\d+) iterations') == lengths[1:]


def test_numbers_of_interrupted_runs():
    from .engine.test_kill_and_resume import FEW, MANY

    page = 'docs/resume.md'
    assert stated(page, rf'kills a run ({NUMBER})') == (len(FEW),)
    assert stated(page, r'`make test-long` kills it (\d+) times') == (len(MANY),)
    in_a_row = inspect.signature(NonFiniteHook).parameters['max_in_a_row'].default
    assert stated(page, r'After (\d+) such iterations in a row') == (in_a_row,)


def test_batch_of_the_recipes():
    cfg = Config.fromfile(ROOT / 'configs/detection/mask_rcnn_xcit_s12_8_3x.py')
    batch, processes, images = stated(
        'docs/distributed.md', r'a batch of (\d+) images: (\d+) processes with (\d+) images each'
    )
    assert batch == processes * images == cfg.auto_scale_lr.base_batch_size
    assert images == cfg.train_dataloader.batch_size


def test_numbers_of_the_recipe_for_small_data():
    rate, detection, segmentation = table('docs/custom_data.md', '| | from ImageNet')
    assert [float(cell) for cell in rate[1:]] == list(starter.LEARNING_RATES)
    assert [int(cell) for cell in detection[1:]] == list(starter.SEEN['detection'])
    assert [int(cell) for cell in segmentation[1:]] == list(starter.SEEN['segmentation'])
    page = 'docs/custom_data.md'
    assert stated(page, r'at least (\d+) and at most (\d+) times') == starter.EPOCHS
    sides = stated(page, r'side of (\d+) pixels for detection and (\d+) .*? \((\d+) and (\d+) on')
    (det_cpu, det_gpu), (seg_cpu, seg_gpu) = starter.SHORT_SIDES.values()
    assert sides == (det_gpu, seg_gpu, det_cpu, seg_cpu)


def test_versions_are_those_of_the_setup():
    setup = read('requirements/setup_env.py')
    minimum = tuple(map(int, re.search(r'MIN_PYTHON = \((\d+), (\d+)\)', setup).groups()))
    assert stated('README.md', r'Python (\d+)\.(\d+) or newer') == minimum
    mmcv = re.search(r"MMCV_VERSION = '(.*?)'", setup)[1]
    assert f'install mmcv {mmcv}' in read('docs/troubleshooting.md')


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
    ],
)
def test_messages_in_the_troubleshooting_table_are_ours(message):
    assert message in read('docs/troubleshooting.md')
    sources = [path.read_text(encoding='utf-8') for path in ROOT.glob('xcit_mm/**/*.py')]
    assert any(message in source for source in sources)


def test_what_importing_changes_is_listed():
    from xcit_mm.compat.checkpoints import STAND_INS

    assert stated('SECURITY.md', rf"({NUMBER}) names on torch's allow-list") == (len(STAND_INS),)
    rows = table('SECURITY.md', '| module |')
    files = [*ROOT.glob('xcit_mm/compat/*.py'), *ROOT.glob('xcit_mm/compat/*/__init__.py')]
    modules = {p.parent.name if p.stem == '__init__' else p.stem for p in files} - {'compat'}
    assert {row[0].strip('`') for row in rows} == modules


# Exactness


def bounds(path):
    """The upper bounds that a test file asserts."""
    tree = ast.parse(read(path))
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
            right = node.comparators[0]
            value = constants.get(getattr(right, 'id', None), getattr(right, 'value', None))
            found |= {value} if isinstance(value, float) else set()
    return found


def test_tolerances_are_those_of_the_tests():
    rows = table('README.md', '| compared with | tolerance |')
    claimed = {}
    for _, tolerance, command in rows:
        for path in re.findall(r'tests/\S+\.py', command):
            claimed.setdefault(path, set()).add(float(tolerance))
    assert set(claimed) == {'tests/models/test_golden.py', 'tests/models/test_timm_parity.py'}
    for path, tolerances in claimed.items():
        assert tolerances == bounds(path), path


def test_counts_of_the_papers_models():
    (percent,) = re.findall(r'([\d.]+) % or the last digit', read('README.md'))
    (test,) = ROOT.glob('tests/**/test_stats.py')
    (bound,) = re.findall(r"([\d.]+) \* row\['paper_gflops'\]", test.read_text(encoding='utf-8'))
    assert float(percent) == pytest.approx(100 * float(bound))
    cells = sum(len(head.configs()) for head in PAPER_HEADS)
    assert stated('README.md', r'of (\d+) detectors and segmentors') == (cells,)
    assert stated('README.md', r'all (\d+) models: features') == (len(VARIANTS) * len(PATCH_SIZES),)


def test_bounds_of_half_precision_are_those_of_the_tests():
    from .models.test_numbers import BOUNDS

    (cells,) = table('docs/backbone.md', '| | bfloat16 | float16 |')
    assert [float(cell.removesuffix(' %')) / 100 for cell in cells[1:]] == list(BOUNDS.values())


# Speed


def measured():
    return json.loads(read('docs/benchmark.json'))


def bar(what, key):
    (found,) = [row['numbers'][key] for row in measured()['bars'] if row['what'] == what]
    return found


def test_speed_in_the_readme_is_what_was_measured():
    expected = [
        ['XCiT-S12/8, inference', 'S12/8 inference', 'above the weights, S12/8 inference'],
        ['XCiT-S12/8, training step', 'S12/8 training step', 'of that step, S12/8'],
        ['XCiT-S12/16, training step', 'S12/16 training step', 'of that step, S12/16'],
    ]
    rows = [
        [
            label,
            f'{bar(f"{speed}, 800x1344", "speedup"):.2f}x',
            f'{bar(f"peak memory {memory}", "ratio"):.2f}x',
        ]
        for label, speed, memory in expected
    ]
    assert table('README.md', '| | speed | peak memory |') == rows
    # "On large images it is faster ... and needs less than half the memory."
    assert all(float(row[1][:-1]) > 1 and float(row[2][:-1]) < 0.5 for row in rows)


def test_benchmark_page_shows_what_was_measured():
    data, page = measured(), read('docs/benchmark.md')
    for row in data['bars']:
        (line,) = [line for line in page.splitlines() if line.startswith(f'| {row["what"]} ')]
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        assert row['measured'] in cells
        assert cells[-1] == ('yes' if row['met'] else 'NO')
    lines = {cells[0]: cells for cells in table('docs/benchmark.md', '| model  ')}
    for row in data['scaling']:
        assert f'{1 / row["seconds"]:.4g}' in lines[row['model']], row
        assert f'{row["peak_MB"]:.0f}' in lines[row['model']], row
    for row in data['detectors']:
        assert re.search(rf'{re.escape(row["Mask R-CNN on"])} +\| +{row["seconds"]:.4g} ', page)
    took = data['machine']['minutes']
    assert f'in {took} minutes' in page
    assert took == pytest.approx(make_minutes()['benchmark', False], rel=0.15)


def test_benchmark_page_has_one_answer_at_224():
    """The comparison with timm and the table of other backbones measure the same at 224x224."""
    row = next(row for row in measured()['bars'] if row['what'] == 'S12/16 inference, 224x224')
    low, high = map(float, re.search(r'\(([\d.]+) to ([\d.]+)\)', row['measured']).groups())
    ours, timm = (
        next(r['seconds'] for r in measured()['scaling'] if r['model'].endswith(f'({who})'))
        for who in ('ours', 'timm')
    )
    assert low <= timm / ours <= high


# Subpackages


def test_the_table_of_subpackages_repeats_their_docstrings():
    rooms = {}
    for path in (ROOT / 'xcit_mm').rglob('__init__.py'):
        room = path.parent.relative_to(ROOT / 'xcit_mm').as_posix()
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
        rooms[room] = ' '.join(docstring.partition('\n\n')[0].replace('``', '`').split())
    del rooms['.']
    rows = table('CONTRIBUTING.md', '| subpackage of `xcit_mm` |')
    assert {room.strip('`'): job for room, job in rows} == rooms


def test_range_of_torch_is_the_one_that_was_tried():
    page = 'docs/install.md'
    rows = table(page, '| Python | torch')
    wanted = [row.split(':') for row in runpy.run_path(str(ROOT / 'dev/torch_matrix.py'))['ROWS']]
    assert [row[: len(named)] for row, named in zip(rows, wanted, strict=True)] == wanted
    assert not any('failed' in cell for row in rows for cell in row)
    oldest, end = re.search(r"'torch>=2\.(\d+),<2\.(\d+)'", read('setup.py')).groups()
    tried = sorted(int(row[1].split('.')[1]) for row in rows)
    assert tried[0] == int(oldest) and tried[-1] == int(end) - 1
    assert stated(page, r'`setup.py` allows torch 2\.(\d+) to 2\.(\d+)') == (tried[0], tried[-1])
    assert re.search(r'commit `[0-9a-f]{7,}`', read(page))


def cells_of(metric, page):
    """The cells of a page's tables that have a metric, below its name or on the right of it."""
    column = None
    for line in page.read_text(encoding='utf-8').splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')] if '|' in line else []
        if metric in cells:
            column = cells.index(metric)
            yield from cells[column + 1 :]
        elif column is not None and column < len(cells):
            yield cells[column]
        else:
            column = None


@each_page
def test_iou_is_in_percent_as_mmseg_prints_it(page):
    numbers = [float(n) for cell in cells_of('mIoU', page) for n in re.findall(r'\d+\.\d+', cell)]
    assert all(number > 1 for number in numbers)
    assert numbers or page.name not in ('README.md', 'real_data.md', 'getting_started.md')
