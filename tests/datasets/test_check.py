"""Bad files are found beforehand, and stop a run by name unless mmdet or mmseg skips them."""

import contextlib
import functools
import json
import pickle
import shutil
from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope

from xcit_mm.datasets import guard
from xcit_mm.datasets.guard import build_guarded
from xcit_mm.datasets.problems import ERRORS, NOTES, DataError
from xcit_mm.engine.images import images_of

from ..limits import limited_memory
from ..tiny import call, write_config
from .bad_data import CASES, HUGE, BadData

# One split of each; the others are long. Training on 100 megapixels takes seconds.
FETCHED = [
    pytest.param(name, split, marks=[pytest.mark.long] * (split != quick))
    for name, case in CASES.items()
    for quick in [case.splits[-1 if 'mega' in name else 0]]
    for split in case.splits
]
RUNS = [pytest.param(n, marks=[pytest.mark.long] * (n != 'det image empty')) for n in CASES]


@pytest.fixture
def spoil(small_data, tmp_path):
    """A function that makes a dataset with one bad file: (case, split) -> config, files."""

    def make(case, split='train'):
        shutil.copytree(small_data, tmp_path / 'data', dirs_exist_ok=True)
        bad = BadData(tmp_path / 'data', split)
        case.spoil(bad)
        config = write_config(tmp_path, case.task, tmp_path / 'data')
        with config.open('a') as file:
            for loader in ('train',) if split == 'train' else ('val', 'test'):
                file.write(f"\n{loader}_dataloader['dataset'].update({bad.settings})")
        return config, bad.files

    return make


def fetch(config, split):
    """The first image of a dataset, through its pipeline, as a run gets it."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    return build_guarded(cfg[f'{split}_dataloader'].dataset)[0]


def test_every_kind_of_problem_is_tested():
    tested = {kind for case in CASES.values() for kind in case.kinds}
    in_other_files = {
        'config: class count', 'dataset: no labels', 'dataset: reduce_zero_label',
        'label: class never used',
    }  # fmt: skip
    assert tested == (ERRORS | NOTES).keys() - in_other_files


@pytest.mark.parametrize('name', [name for name in CASES if name != 'seg image 100 megapixels'])
def test_every_problem_is_found_beforehand(name, spoil, tmp_path, capfd):
    case = CASES[name]
    config, files = spoil(case)
    report = tmp_path / 'report.json'
    status = call('check', config, '--json', report)
    content, printed = json.loads(report.read_text()), capfd.readouterr().out
    assert {problem['problem'] for problem in content['problems']} == case.kinds
    assert status == (1 if case.kinds & ERRORS.keys() else 0)
    for kind in case.kinds:
        assert kind in printed and (ERRORS | NOTES)[kind] in printed
    assert case.says in printed and str(report) in printed
    assert case.says or any(str(file) in printed for file in files)


@pytest.mark.parametrize('name, split', FETCHED)
def test_a_run_handles_every_problem_or_stops_and_names_the_file(name, split, spoil):
    """Runs the datasets and pipelines of training and testing, without the network."""
    case = CASES[name]
    config, files = spoil(case, split)
    if not case.stops:
        assert fetch(config, split)['inputs'].shape[0] == 3
        return
    with pytest.raises(DataError) as raised:
        fetch(config, split)
    message = str(raised.value)
    assert case.says in message and len(message.splitlines()) == 1
    if not case.says:
        assert any(str(file) in message for file in files) and 'check_dataset.py' in message


@pytest.fixture(scope='module')
def trained(tmp_path_factory, small_data):
    """A function that returns the checkpoint of a detector or a segmentor."""

    @functools.cache
    def train_one(task):
        folder = tmp_path_factory.mktemp(task)
        config = write_config(folder, task, small_data)
        call('train', config, '--work-dir', folder, '--no-validate')
        (checkpoint,) = folder.glob('*_1.pth' if task == 'seg' else 'epoch_1.pth')
        return checkpoint

    return train_one


@pytest.mark.parametrize('name', RUNS)
def test_whole_runs(name, spoil, trained, tmp_path, capfd):
    """Trains and tests on the bad file, with the code of the tools."""
    case = CASES[name]
    for split in case.splits:
        config, files = spoil(case, split)
        # With a worker process, whose errors cross processes.
        words = ['train', config, '--no-validate', '--cfg-options']
        words += ['train_dataloader.num_workers=1', 'train_dataloader.dataset.indices=1']
        if split == 'val':
            limit = 'test_dataloader.dataset.indices=1'
            words = ['test', config, trained(case.task), '--cfg-options', limit]
        # mmseg scales the logits of 150 classes to the size of the image: 60 GB.
        is_too_large = name == 'seg image 100 megapixels' and split == 'val'
        with limited_memory(16 << 30) if is_too_large else contextlib.nullcontext():
            status = call(*words, '--work-dir', tmp_path / 'work')
        error = capfd.readouterr().err
        if case.stops or is_too_large:
            message = error.splitlines()[-1]
            assert status == 2 and message.startswith('error: ')
            assert case.says in message
            assert case.says or any(str(file) in message for file in files)
        else:
            assert status == 0, error
        shutil.rmtree(tmp_path / 'data')


def test_inference_skips_an_image_that_does_not_fit_in_memory(spoil, trained, tmp_path, capfd):
    checkpoint = trained('seg')
    config, (_, image, *_) = spoil(CASES['seg image 100 megapixels'], 'val')
    images = sorted(image.parent.iterdir())
    options = ['--config', config, '--checkpoint', checkpoint, '--out-dir', tmp_path, '--no-vis']
    with limited_memory(16 << 30):
        assert call('infer', *images, *options) == 1
    printed = capfd.readouterr().out
    assert f'not enough memory for {HUGE}x{HUGE} pixels: {image}' in printed
    assert f'{len(images) - 1} of {len(images)} images' in printed
    assert len(list((tmp_path / 'labels').iterdir())) == len(images) - 1 > 0


def test_images_of_a_batch_are_named_once():
    samples = [
        SimpleNamespace(metainfo=dict(img_path=name, ori_shape=(3, 5))) for name in ('a', 'b')
    ]
    named = ['a (5x3 pixels)', 'b (5x3 pixels)']
    assert images_of({'data_samples': samples}) == named
    # The same in test-time augmentation.
    assert images_of({'data_samples': [samples, samples]}) == named
    assert images_of({'data_samples': [None]}) == images_of({}) == images_of(None) == []


def test_good_data_has_no_problems_and_splits_can_be_chosen(small_data, tmp_path, capfd):
    for task in ('det', 'seg'):
        config = write_config(tmp_path, task, small_data)
        for options, printed in (
            ([], '10 images: 0 errors, 0 notes'),
            (['--split', 'val'], '2 im'),
        ):
            assert call('check', config, *options) == 0
            assert printed in capfd.readouterr().out


def test_many_problems_give_a_short_table_and_a_long_file(spoil, tmp_path, capfd):
    config, (image, *_) = spoil(CASES['det image empty'])
    for path in image.parent.iterdir():
        path.write_bytes(b'')
    report = tmp_path / 'report.json'
    assert call('check', config, '--json', report) == 1
    printed = capfd.readouterr().out
    assert 'image: empty' in printed and 'and 5 more' in printed
    assert '10 images: 8 errors, 0 notes' in printed
    assert len(json.loads(report.read_text())['problems']) == 8
    assert call('check', config, '--json', report) == 2
    assert '--force' in capfd.readouterr().err


@pytest.mark.parametrize(
    'options, message',
    [
        (['--split', 'test', '--cfg-options', 'test_dataloader=None'], 'no dataset in test_'),
        (['--cfg-options', 'train_dataloader.dataset.data_root=nowhere/'], 'does not exist'),
        (['--cfg-options', 'train_dataloader.dataset.type=XMLDataset'], 'XMLDataset is neither'),
    ],
)
def test_datasets_that_cannot_be_checked_are_an_error(
    options, message, small_data, tmp_path, capfd
):
    assert call('check', write_config(tmp_path, 'det', small_data), *options) == 2
    assert message in capfd.readouterr().err


def test_a_guarded_dataset_can_be_sent_to_another_process(spoil):
    config, files = spoil(CASES['det image empty'])
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    dataset = build_guarded(cfg.train_dataloader.dataset)
    sent = pickle.loads(pickle.dumps(dataset))
    assert type(sent) is type(dataset) and type(sent).__name__ == 'CocoDataset'
    assert len(sent) == len(dataset)
    with pytest.raises(DataError, match=str(files[0])):
        sent[0]


def test_the_labels_of_a_file_are_checked_once(small_data, tmp_path, monkeypatch):
    cfg = Config.fromfile(write_config(tmp_path, 'seg', small_data))
    init_default_scope(cfg.default_scope)
    dataset = build_guarded(cfg.train_dataloader.dataset)
    checked = []
    monkeypatch.setattr(guard, 'check_loaded_label', lambda _, path, *args: checked.append(path))
    for _ in range(3):
        dataset[0], dataset[1]
    assert checked == [dataset.get_data_info(i)['seg_map_path'] for i in (0, 1)]


def test_wrapped_datasets_are_guarded_and_checked(spoil, capfd):
    config, files = spoil(CASES['det image empty'])
    with config.open('a') as file:
        file.write(
            "\ninner = train_dataloader['dataset']\n"
            "train_dataloader['dataset'] = dict(type='RepeatDataset', times=2,\n"
            "    dataset=dict(type='ConcatDataset', datasets=[inner, inner]))\n"
        )
    with pytest.raises(DataError, match=str(files[0])):
        fetch(config, 'train')
    assert call('check', config) == 1
    assert '10 images: 1 errors' in capfd.readouterr().out
