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

from xcit_mm.datasets.guard import build_guarded
from xcit_mm.datasets.problems import ERRORS, NOTES, DataError
from xcit_mm.engine.images import images_of
from xcit_mm_cli import check, infer, test, train

from ..limits import limited_memory
from ..tiny import write_config
from .bad_data import ANNOTATIONS, HUGE, IMAGES, LABELS, BadData

TASKS = ('det', 'seg')
# name -> how the data is spoilt, and what is found
CASES = {
    **{
        f'{task} image {name}': (task, lambda bad, s=spoil: bad.spoil_image(s), kinds, stops)
        for task in TASKS
        for name, (spoil, kinds, stops) in IMAGES.items()
    },
    # mmseg drops the dimensions of labels that are one pixel high or wide.
    'seg image 1x1': (
        'seg', lambda bad: bad.spoil_image(IMAGES['1x1'][0]),
        {'image: tiny', 'label: unreadable'}, True,
    ),
    'det image turned': (
        'det', lambda bad: bad.turn_image(), {'image: rotated by EXIF', 'image: other size'}, False,
    ),
    'seg image turned': (
        'seg', lambda bad: bad.turn_image(), {'image: rotated by EXIF', 'label: other size'}, True,
    ),
    **{
        f'annotation {name}': (
            'det', lambda bad, s=spoil: bad.spoil_annotations(s), {f'annotations: {kind}'}, stops,
        )
        for name, (spoil, kind, stops) in ANNOTATIONS.items()
    },
    **{
        f'label {name}': ('seg', lambda bad, s=spoil: s(bad.label), {f'label: {kind}'}, True)
        for name, (spoil, kind) in LABELS.items()
    },
}  # fmt: skip


def call(tool, *arguments):
    """A tool's exit status."""
    return tool.main([str(word) for word in arguments])


@pytest.fixture
def spoilt(small_data, tmp_path):
    """A function that makes a dataset with one bad file: (task, spoil, split) -> config, files."""

    def make(task, spoil, split='train'):
        shutil.copytree(small_data, tmp_path / 'data')
        bad = BadData(tmp_path / 'data', split)
        spoil(bad)
        image = bad.coco_image if task == 'det' else bad.ade_image
        config = write_config(tmp_path, task, tmp_path / 'data')
        if spoil is CASES['seg image missing'][1]:  # from a folder, but not from a list
            with config.open('a') as file:
                for loader in ('train',) if split == 'train' else ('val', 'test'):
                    file.write(f"\n{loader}_dataloader['dataset']['ann_file'] = '{split}.txt'\n")
        return config, (image, bad.label, bad.annotations)

    return make


def test_every_kind_of_problem_is_tested():
    tested = {kind for _, _, kinds, _ in CASES.values() for kind in kinds}
    elsewhere = {kind for kind in ERRORS if kind.startswith('dataset')}
    elsewhere |= {'label: without image', 'label: class never used', 'config: class count'}
    assert tested == (ERRORS | NOTES).keys() - elsewhere


@pytest.mark.parametrize('case', [case for case in CASES if case != 'seg image 100 megapixels'])
def test_every_problem_is_found_beforehand(case, spoilt, tmp_path, capfd):
    task, spoil, expected, _ = CASES[case]
    config, files = spoilt(task, spoil)
    report = tmp_path / 'report.json'
    status = call(check, config, '--json', report)
    content, printed = json.loads(report.read_text()), capfd.readouterr().out
    kinds = {problem['problem'] for problem in content['problems']}
    assert kinds == expected
    assert content['images'] == (11 if case.endswith('two images') else 10)
    assert status == (1 if expected & ERRORS.keys() else 0)
    for kind in expected:
        assert kind in printed and (ERRORS | NOTES)[kind] in printed
    assert any(str(file) in printed for file in files) and str(report) in printed


def fetch(config, loader):
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    return build_guarded(cfg[loader].dataset)[0]


# 100 megapixels take seconds, so not in every combination.
FETCHED = [
    pytest.param(
        case, split, marks=[pytest.mark.long] * (case.endswith('pixels') and split == 'train')
    )
    for case in CASES
    for split in ('train', 'val')
]


@pytest.mark.parametrize('case, split', FETCHED)
def test_a_run_handles_every_problem_or_stops_and_names_the_file(case, split, spoilt):
    """Runs the datasets and pipelines of training and testing, without the network."""
    task, spoil, _, stops = CASES[case]
    config, files = spoilt(task, spoil, split)
    if not stops:
        assert fetch(config, f'{split}_dataloader')['inputs'].shape[0] == 3
        return
    with pytest.raises(DataError) as raised:
        fetch(config, f'{split}_dataloader')
    assert any(str(file) in str(raised.value) for file in files)
    assert len(str(raised.value).splitlines()) == 1
    assert 'tools/check_dataset.py' in str(raised.value)


SHORT = ('det image empty',)
RUNS = [pytest.param(case, marks=[pytest.mark.long] * (case not in SHORT)) for case in CASES]


@pytest.fixture(scope='module')
def trained(tmp_path_factory, small_data):
    """A function that returns the checkpoint of a detector or a segmentor."""

    @functools.cache
    def train_one(task):
        folder = tmp_path_factory.mktemp(task)
        config = write_config(folder, task, small_data)
        call(train, config, '--work-dir', folder, '--no-validate')
        (checkpoint,) = folder.glob('*_1.pth' if task == 'seg' else 'epoch_1.pth')
        return checkpoint

    return train_one


@pytest.mark.parametrize('case', RUNS)
def test_whole_runs(case, spoilt, trained, tmp_path, capfd):
    """Trains and tests on the bad file, with the code of the tools."""
    task, spoil, _, stops = CASES[case]
    checkpoint = trained(task)
    for split, tool, arguments in (
        # With a worker process, whose errors cross processes.
        ('train', train, ['--no-validate', '--cfg-options', 'train_dataloader.num_workers=1',
                          'train_dataloader.dataset.indices=1']),
        ('val', test, ['--cfg-options', 'test_dataloader.dataset.indices=1']),
    ):  # fmt: skip
        config, files = spoilt(task, spoil, split)
        weights = [checkpoint] if tool is test else []
        common = [config, *weights, '--work-dir', tmp_path / 'work']
        # mmseg scales the logits of 150 classes to the size of the image: 60 GB.
        is_too_large = case == 'seg image 100 megapixels' and tool is test
        with limited_memory(16 << 30) if is_too_large else contextlib.nullcontext():
            status = call(tool, *common, *arguments)
        error = capfd.readouterr().err
        if stops or is_too_large:
            check_stopped(status, error, files)
        else:
            assert status == 0, error
        shutil.rmtree(tmp_path / 'data')


def test_inference_skips_an_image_that_does_not_fit_in_memory(spoilt, trained, tmp_path, capfd):
    checkpoint = trained('seg')
    config, (image, *_) = spoilt('seg', CASES['seg image 100 megapixels'][1], 'val')
    images = sorted(image.parent.iterdir())
    options = ['--config', config, '--checkpoint', checkpoint, '--out-dir', tmp_path, '--no-vis']
    with limited_memory(16 << 30):
        assert call(infer, *images, *options) == 1
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


def check_stopped(status, error, files):
    message = error.splitlines()[-1]
    assert status == 2 and message.startswith('error: ')
    assert any(str(file) in message for file in files)


def test_good_data_has_no_problems_and_splits_can_be_chosen(small_data, tmp_path, capfd):
    for task in TASKS:
        config = write_config(tmp_path, task, small_data)
        assert call(check, config) == 0
        assert '10 images: 0 errors, 0 notes' in capfd.readouterr().out
        assert call(check, config, '--split', 'val') == 0
        assert '2 images: 0 errors' in capfd.readouterr().out


def test_many_problems_give_a_short_table_and_a_long_file(spoilt, tmp_path, capfd):
    def spoil(bad):
        for path in bad.coco_image.parent.iterdir():
            path.write_bytes(b'')

    config, _ = spoilt('det', spoil)
    report = tmp_path / 'report.json'
    assert call(check, config, '--json', report) == 1
    printed = capfd.readouterr().out
    assert 'image: empty' in printed and 'and 5 more' in printed
    assert '10 images: 8 errors, 0 notes' in printed
    assert len(json.loads(report.read_text())['problems']) == 8
    assert call(check, config, '--json', report) == 2
    assert '--force' in capfd.readouterr().err


def test_a_label_without_image_is_noted(spoilt, capfd):
    config, _ = spoilt('seg', lambda bad: bad.ade_image.unlink())
    assert call(check, config) == 0
    assert 'label: without image' in capfd.readouterr().out


@pytest.mark.parametrize('content', ['', '[]', '{"images": 3}', '{"images": [{"id": []}]'])
def test_an_invalid_annotation_file_is_found_and_stops_a_run(content, spoilt, capfd):
    config, files = spoilt('det', lambda bad: bad.annotations.write_text(content))
    assert call(check, config) == 1
    assert 'annotations: not COCO' in capfd.readouterr().out
    with pytest.raises(DataError, match=str(files[-1])):
        fetch(config, 'train_dataloader')


def rename_images(bad):
    for path in bad.ade_image.parent.iterdir():
        path.rename(path.with_suffix('.JPG'))


def leave_no_images(bad):
    bad.annotations.write_text(json.dumps({**bad.content, 'images': [], 'annotations': []}))


EMPTY = {
    'suffix': ('seg', rename_images, '', 'images/training: no file ends in .jpg; the folder has '
               '8 files with .JPG. Set img_suffix'),
    'no files': ('seg', lambda bad: [p.unlink() for p in bad.ade_image.parent.iterdir()], '',
                 'images/training: no file ends in .jpg; the folder has no files at all'),
    'empty list': ('seg', lambda bad: (bad.label.parents[2] / 'empty.txt').touch(),
                   "train_dataloader['dataset']['ann_file'] = 'empty.txt'\n",
                   'empty.txt: it lists no images'),
    'no images': ('det', leave_no_images, '', 'instances_train2017.json: it lists no images'),
    'no objects': (
        'det', lambda bad: bad.spoil_annotations(lambda content: content.update(annotations=[])),
        "train_dataloader['dataset']['filter_cfg'] = dict(filter_empty_gt=True)\n",
        'leaves out all 8 images by filter_empty_gt=True',
    ),
    'small images': (
        'det', lambda bad: None,
        "train_dataloader['dataset']['filter_cfg'] = dict(min_size=500)\n",
        'leaves out all 8 images by min_size=500',
    ),
}  # fmt: skip


@pytest.mark.parametrize('case', EMPTY)
def test_a_dataset_without_images_is_an_error(case, spoilt, tmp_path, capfd):
    task, spoil, line, expected = EMPTY[case]
    config, _ = spoilt(task, spoil)
    config.write_text(f'{config.read_text()}\n{line}')
    assert call(check, config) == 1
    printed = capfd.readouterr().out
    assert 'dataset: empty' in printed and expected in printed
    with pytest.raises(DataError) as raised:
        fetch(config, 'train_dataloader')
    assert expected in str(raised.value)
    if case == 'suffix':
        assert call(train, config, '--work-dir', tmp_path / 'work') == 2
        assert expected in capfd.readouterr().err.splitlines()[-1]


def test_a_config_without_datasets_is_an_error(small_data, tmp_path, capfd):
    config = write_config(tmp_path, 'det', small_data)
    config.write_text(f'{config.read_text()}\ntest_dataloader = None\n')
    assert call(check, config, '--split', 'test') == 2
    assert 'no dataset in test_dataloader' in capfd.readouterr().err


def test_evaluation_counts_an_object_that_training_skips(spoilt):
    """As the text on empty boxes says: perfect detections of all others do not reach 1."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    _, (*_, file) = spoilt('det', CASES['annotation no width'][1])
    content = json.loads(file.read_text())
    empty, *others = content['annotations']
    found = [{**a, 'score': 1.0} for a in others if a['image_id'] == empty['image_id']]
    truth = COCO(file)
    evaluation = COCOeval(truth, truth.loadRes(found), 'bbox')
    evaluation.params.imgIds = [empty['image_id']]
    evaluation.params.useCats = 0
    evaluation.evaluate()
    evaluation.accumulate()
    recall = evaluation.eval['recall'][0, 0, 0, -1]  # IoU 0.5, objects of all sizes
    assert recall == pytest.approx(len(found) / (len(found) + 1)) and found


def test_datasets_that_cannot_be_checked_are_reported(small_data, tmp_path, capfd):
    config = write_config(tmp_path, 'det', tmp_path / 'nowhere')
    assert call(check, config) == 2
    assert 'does not exist' in capfd.readouterr().err
    config = write_config(tmp_path, 'det', small_data)
    voc = ['--cfg-options', 'train_dataloader.dataset.type=XMLDataset']
    assert call(check, config, *voc) == 2
    assert 'XMLDataset is neither' in capfd.readouterr().err


def test_a_guarded_dataset_can_be_sent_to_another_process(spoilt):
    config, files = spoilt('det', lambda bad: bad.coco_image.write_bytes(b''))
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    dataset = build_guarded(cfg.train_dataloader.dataset)
    sent = pickle.loads(pickle.dumps(dataset))
    assert type(sent) is type(dataset) and type(sent).__name__ == 'CocoDataset'
    assert len(sent) == len(dataset)
    with pytest.raises(DataError, match=str(files[0])):
        sent[0]


def test_wrapped_datasets_are_guarded_and_checked(spoilt, tmp_path, capfd):
    config, files = spoilt('det', lambda bad: bad.coco_image.write_bytes(b''))
    with config.open('a') as file:
        file.write(
            "\ninner = train_dataloader['dataset']\n"
            "train_dataloader['dataset'] = dict(type='RepeatDataset', times=2,\n"
            "    dataset=dict(type='ConcatDataset', datasets=[inner, inner]))\n"
        )
    with pytest.raises(DataError, match=str(files[0])):
        fetch(config, 'train_dataloader')
    assert call(check, config) == 1
    assert '10 images: 1 errors' in capfd.readouterr().out
