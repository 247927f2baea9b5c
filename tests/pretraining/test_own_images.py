"""From a folder of images with four channels to a detector: DINO, its checkpoint, what is named."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint

from tests.engine import runs
from tests.tiny import ROOT, forget_runs, shrink
from tests.weights.test_formats import to_released
from xcit_mm.datasets.problems import DataError
from xcit_mm.demo.curves import read_curves
from xcit_mm.models import XCiT
from xcit_mm.pretraining import CenterImageCrop, LoadChannels, MultiCrop, read_channels
from xcit_mm.pretraining.folders import LabeledFolder, UnlabeledFolder
from xcit_mm.weights import WeightsError, inflate, read_weights, recognize, unwrap
from xcit_mm_cli import check, convert_weights, infer, test, train

ARCH = dict(embed_dims=16, depth=4, num_heads=2)
DINO = """
_base_ = '{root}/configs/pretraining/dino_xcit_s12_16_300e.py'
arch = dict(embed_dims=16, depth=4, num_heads=2)
model = dict(
    backbone=dict(_delete_=True, type='XCiTClassifier', arch=arch, patch_size=16, in_channels=4,
        drop_path_rate=0.2),
    head=dict(out_dims=32, hidden_dims=16, bottleneck_dims=8))
numbers = dict(mean=[0.5], std=[0.25])
pipeline = [
    dict(type='LoadChannels', channels=4, skip_unreadable=True),
    dict(type='MultiCrop', global_size=48, local_size=32, local_crops=2, **numbers),
    dict(type='PackImage')]
test_pipeline = [
    dict(type='LoadChannels', channels=4), dict(type='CenterImageCrop', size=48, **numbers),
    dict(type='PackImage')]
labeled = dict(type='LabeledFolder', data_root='{data}', pipeline=test_pipeline)
train_dataloader = dict(batch_size=4, num_workers=1, dataset=dict(
    data_root='{data}', data_prefix=dict(img_path='.'), pipeline=pipeline))
val_dataloader = dict(batch_size=4, num_workers=0, persistent_workers=False,
    dataset=dict(datasets=[
        dict(data_prefix=dict(img_path='a'), role='bank', **labeled),
        dict(data_prefix=dict(img_path='b'), **labeled)]))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs={steps}, val_interval=4)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=20, eta_min=1e-6)]
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(max_keep_ckpts=-1),
    dino=dict(temp_warmup_epochs=2))
auto_scale_lr = dict(enable=False)
custom_hooks = [dict(type='ValidateFirstHook')]
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Images of four channels, as PNG, TIFF and array, in folders of classes, at any depth."""
    random = np.random.default_rng(0)
    root = tmp_path_factory.mktemp('unlabeled')
    for part in ('a', 'b'):
        for name in ('one', 'two'):
            place = root / part / name / 'deep'
            place.mkdir(parents=True)
            images = random.integers(0, 255, (3, 60, 70, 4), dtype=np.uint8)
            cv2.imwrite(str(place / '0.png'), images[0])
            cv2.imwritemulti(str(place / '1.tif'), list(images[1].transpose(2, 0, 1)))
            np.save(place / '2.npy', images[2])
    return root


@pytest.fixture(scope='module')
def undisturbed(folder, tmp_path_factory):
    """A config, and the work folder of a run of four epochs."""
    place = tmp_path_factory.mktemp('dino')
    data = shutil.copytree(folder, place / 'data')
    (data / 'broken.png').write_bytes(b'not an image')
    config = runs.write_config(place, DINO, data, 4)
    work_dir = place / 'work'
    status, printed = runs.run(work_dir, config, '--seed', '1')
    assert status == 0, printed[-3000:]
    return config, work_dir, printed


def test_the_start_fits_a_screen(undisturbed):
    _, _, printed = undisturbed
    start = printed[: printed.index('Epoch(train)')].splitlines()
    assert len(start) < 24 and any('of them frozen' in line for line in start)
    assert 'is skipped since' not in printed


def test_features_are_measured_before_training_too(undisturbed):
    _, work_dir, _ = undisturbed
    _, curves = read_curves(work_dir, ['accuracy/knn'])
    assert list(curves['accuracy/knn']) == [0, 4]


def test_nothing_is_measured_without_validation(undisturbed, tmp_path):
    config, _, _ = undisturbed
    options = ['--no-validate', '--cfg-options', 'train_cfg.max_epochs=1']
    status, printed = runs.run(tmp_path, config, *options)
    assert status == 0, printed[-3000:]
    assert 'accuracy/knn' not in printed


def test_a_run_names_unreadable_files_and_measures_features(undisturbed, tmp_path, capfd):
    config, work_dir, printed = undisturbed
    data = config.parent / 'data'
    assert printed.count('broken.png is skipped: it cannot be read.') >= 1
    assert 'accuracy/knn' in printed and 'accuracy/linear' in printed
    assert 'are smaller than the large crops' not in printed
    metrics = tmp_path / 'metrics.json'
    assert check.main([str(config), '--split', 'train']) == 1
    assert 'broken.png' in capfd.readouterr().out
    arguments = [data / 'a/one/deep/0.png', '--config', config, '--checkpoint', 'none.pth']
    assert infer.main([str(argument) for argument in arguments]) == 2
    assert 'this config is for pre-training' in capfd.readouterr().err
    forget_runs()
    arguments = [config, work_dir / 'epoch_4.pth', '--json', metrics, '--work-dir', tmp_path]
    assert test.main([str(argument) for argument in arguments]) == 0
    assert set(json.loads(metrics.read_text())) == {'accuracy/knn', 'accuracy/linear'}


@pytest.mark.parametrize('wrap', [dict, lambda state: dict(student={}, teacher=state)])
def test_a_backbone_alone_is_scored(undisturbed, tmp_path, wrap, capfd):
    """The published files of DINO are backbones in the authors' names."""
    config, work_dir, _ = undisturbed
    weights = recognize(unwrap(torch.load(work_dir / 'epoch_4.pth', weights_only=True))).state
    path = tmp_path / 'published.pth'
    torch.save(wrap(to_released(weights)), path)
    scores = []
    for checkpoint in (path, work_dir / 'epoch_4.pth'):
        forget_runs()
        words = [config, checkpoint, '--json', tmp_path / 'scores.json', '--force']
        assert test.main([*map(str, words), '--work-dir', str(tmp_path)]) == 0
        scores.append(json.loads((tmp_path / 'scores.json').read_text()))
    assert scores[0] == scores[1]
    assert capfd.readouterr().out.count('into student.backbone and teacher.backbone') == 1
    model = MODELS.build(Config.fromfile(config).model)
    load_checkpoint(model, str(path))
    for branch in (model.student, model.teacher):
        for name, tensor in branch.backbone.state_dict().items():
            assert torch.equal(tensor, weights[name]), name


def test_folders_named_by_numbers_are_classes_in_their_order(tmp_path):
    """As in ImageNet-V2; sorted as text, class 2 would have the label 111."""

    def labels(folder):
        images = LabeledFolder(data_root=str(tmp_path), data_prefix=dict(img_path=folder))
        return {Path(image['img_path']).parent.name: image['gt_label'] for image in images}

    for name in ['v2/0', 'v2/2', 'v2/10', 'v2/111', 'mixed/2', 'mixed/10', 'mixed/n01']:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / 'image.png').touch()
    assert labels('v2') == {'0': 0, '2': 1, '10': 2, '111': 3}
    assert labels('mixed') == {'10': 0, '2': 1, 'n01': 2}


@pytest.mark.long
def test_a_killed_run_resumes_exactly(undisturbed, tmp_path):
    config, work_dir, _ = undisturbed
    killed = tmp_path / 'killed'
    process = runs.start(killed, config, '--seed', '1')
    assert runs.wait_for(lambda: runs.saved_step(killed) >= 1, process)
    runs.kill(process)
    assert runs.saved_step(killed) < 4
    status, printed = runs.run(killed, config, '--resume')
    assert status == 0, printed[-3000:]
    assert '[0][' not in printed, 'validated at the start, as if nothing was trained'
    one, two = (runs.trained(place / 'epoch_4.pth') for place in (work_dir, killed))
    assert not runs.differences(one, two)
    state = one['state_dict']
    assert state['center'].abs().max() > 0
    name = 'backbone.layers.0.xca.qkv.weight'
    assert not torch.equal(state[f'teacher.{name}'], state[f'student.{name}'])


def test_the_checkpoint_goes_into_a_detector_and_is_converted(undisturbed, tmp_path, capfd):
    """The detector takes the teacher; ``convert`` leaves the student and the heads out."""
    _, work_dir, _ = undisturbed
    checkpoint = work_dir / 'epoch_4.pth'
    state = runs.load(checkpoint)['state_dict']
    target = tmp_path / 'clean.safetensors'
    assert convert_weights.main([str(checkpoint), str(target)]) == 0
    printed = capfd.readouterr().out
    assert 'trained as DINO' in printed and 'in_channels 4' in printed
    description = runs.load(checkpoint)['meta']['xcit_mm']
    assert description['trained_as'] == 'DINO' and description['embed_dims'] == 16
    names = set(read_weights(str(target)))
    assert not any('head.' in n or n.startswith(('student', 'teacher')) for n in names)
    for source in (checkpoint, target):
        init_cfg = dict(type='Pretrained', checkpoint=str(source))
        cfg = Config.fromfile(ROOT / 'configs/detection/mask_rcnn_xcit_n12_16_3x.py')
        shrink(cfg.model)
        cfg.model.backbone.update(in_channels=4, init_cfg=init_cfg, norm_cfg=dict(type='BN'))
        cfg.model.data_preprocessor.update(mean=[128.0], std=[64.0], bgr_to_rgb=False)
        init_default_scope('mmdet')
        detector = MODELS.build(cfg.model)
        detector.init_weights()
        for name, tensor in detector.backbone.state_dict().items():
            if not name.startswith('pyramid.'):
                assert torch.equal(tensor, state[f'teacher.backbone.{name}']), name
        inputs = [torch.randint(0, 255, (4, 64, 96), dtype=torch.uint8)]
        batch = detector.data_preprocessor(dict(inputs=inputs, data_samples=None))
        levels = detector.extract_feat(batch['inputs'])
        assert all(level.isfinite().all() for level in levels)


def test_three_channels_are_inflated_on_request(tmp_path):
    torch.manual_seed(0)
    rgb = XCiT(ARCH, 16, out_indices=(0, 1, 2, 3)).eval()
    torch.save(rgb.state_dict(), tmp_path / 'rgb.pth')
    checkpoint = str(tmp_path / 'rgb.pth')
    image = torch.rand(1, 1, 48, 64)
    expected = rgb(image.expand(-1, 3, -1, -1))
    for channels in (1, 2, 4, 13):
        settings = dict(in_channels=channels, out_indices=(0, 1, 2, 3))
        with pytest.raises(WeightsError, match=f'in_channels {channels} in the config, 3 in the'):
            XCiT(ARCH, 16, **settings).load_state_dict(rgb.state_dict())
        init_cfg = dict(type='PretrainedXCiT', checkpoint=checkpoint, inflate=True)
        model = XCiT(ARCH, 16, init_cfg=init_cfg, **settings).eval()
        model.init_weights()
        # Equal channels give what they give as RGB.
        for one, two in zip(model(image.expand(-1, channels, -1, -1)), expected, strict=True):
            assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    weight = torch.randn(2, 3, 3, 3)
    four = inflate(weight, 4)
    assert torch.allclose(four[:, 3], weight[:, 0] / 2) and four.shape == (2, 4, 3, 3)


def test_a_classifiers_checkpoint_is_recognized():
    from xcit_mm.pretraining import ImageClassifier

    backbone = dict(type='XCiTClassifier', arch=ARCH, num_classes=3)
    state = ImageClassifier(backbone).state_dict()
    found = recognize(unwrap({'state_dict': state}))
    assert found.format == 'own' and not found.others
    assert {f'backbone.{name}' for name in found.state} == set(state)


def test_images_of_1_to_16_channels_are_read(tmp_path):
    random = np.random.default_rng(0)
    gray = random.integers(0, 2**16, (20, 30), dtype=np.uint16)
    rgba = random.integers(0, 255, (20, 30, 4), dtype=np.uint8)
    many = random.random((20, 30, 13)).astype(np.float32)
    cv2.imwrite(str(tmp_path / 'gray.png'), gray)
    cv2.imwrite(str(tmp_path / 'rgba.png'), cv2.cvtColor(rgba, cv2.COLOR_RGBA2BGRA))
    cv2.imwritemulti(str(tmp_path / 'many.tiff'), list(many.transpose(2, 0, 1)))
    np.save(tmp_path / 'many.npy', many)
    assert np.array_equal(read_channels(str(tmp_path / 'gray.png'), 1)[..., 0], gray)
    assert np.array_equal(read_channels(str(tmp_path / 'rgba.png'), 4), rgba)
    assert np.array_equal(read_channels(str(tmp_path / 'rgba.png'), 3), rgba[..., :3])
    assert read_channels(str(tmp_path / 'rgba.png'), 1).shape == (20, 30, 1)
    assert read_channels(str(tmp_path / 'gray.png'), 3).shape == (20, 30, 3)
    # Values of 12 bits fill the range of the type, as others do.
    cv2.imwrite(str(tmp_path / '12.png'), gray >> 4)
    assert np.array_equal(read_channels(str(tmp_path / '12.png'), 1, 12)[..., 0], gray & 0xFFF0)
    assert (read_channels(str(tmp_path / '12.png'), 3, 12) == (gray >> 8)[..., None]).all()
    np.save(tmp_path / '12.npy', np.dstack([gray >> 4] * 3))
    assert (read_channels(str(tmp_path / '12.npy'), 3, 12) == (gray >> 8)[..., None]).all()
    for name in ('many.tiff', 'many.npy'):
        assert np.array_equal(read_channels(str(tmp_path / name), 13), many)
        with pytest.raises(ValueError, match='16 channels were expected'):
            read_channels(str(tmp_path / name), 16)
    np.save(tmp_path / 'objects.npy', np.array([{}], dtype=object))
    with pytest.raises(ValueError, match='allow_pickle'):
        read_channels(str(tmp_path / 'objects.npy'), 4)
    (tmp_path / 'cut.png').write_bytes((tmp_path / 'rgba.png').read_bytes()[:30])
    for channels in (1, 3, 4):
        with pytest.raises(ValueError, match='it cannot be read'):
            read_channels(str(tmp_path / 'cut.png'), channels)
    for channels in (0, 17):
        with pytest.raises(ValueError, match='channels must be in 1'):
            LoadChannels(channels)


@pytest.mark.parametrize('channels', [1, 3, 13])
def test_crops_have_their_sizes_and_are_reproducible(channels):
    image = np.random.default_rng(0).integers(0, 255, (40, 90, channels), dtype=np.uint8)
    numbers = dict(mean=[0.5], std=[0.25])
    crops = MultiCrop(64, (0.4, 1.0), 32, (0.05, 0.4), 3, **numbers)
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results.append(crops(dict(img=image))['img'])
    shapes = {name: tuple(each.shape) for name, each in results[0].items()}
    assert shapes == dict(global_crops=(2, channels, 64, 64), local_crops=(3, channels, 32, 32))
    for name, each in results[0].items():
        assert torch.equal(each, results[1][name])
        assert each.min() >= -2 and each.max() <= 2 + 1e-6  # 0...1, normalized
    only = MultiCrop(64, local_crops=0, **numbers)(dict(img=image))['img']
    assert set(only) == {'global_crops'}
    middle = CenterImageCrop(32, crop_ratio=0.875, **numbers)(dict(img=image))['img']
    assert middle.shape == (channels, 32, 32)
    with pytest.raises(ValueError, match='floating-point images must be in 0'):
        crops(dict(img=image.astype(np.float32)))
    with pytest.raises(ValueError, match='images must be uint8, uint16 or floating-point'):
        crops(dict(img=image.astype(np.int64)))
    signed = (image // 2).astype(np.int16)
    assert crops(dict(img=signed))['img']['global_crops'].shape == (2, channels, 64, 64)
    with pytest.raises(ValueError, match='whole numbers not below 0'):
        crops(dict(img=-1 - signed))
    for std in ([0.5, 0.5], [0.0]):
        with pytest.raises(ValueError, match=r'must be above 0: not \[0.5\] and'):
            CenterImageCrop(32, mean=[0.5], std=std)
    with pytest.raises(ValueError, match='mean and std have 2 numbers'):
        CenterImageCrop(32, mean=[0, 0], std=[1, 1])(dict(img=image))


def test_color_strength_says_how_much_the_colors_of_crops_change():
    # An image of one color: every crop of it would be that color, without changes.
    color = torch.tensor([0.3, 0.6, 0.4]).view(3, 1, 1)
    image = color.expand(3, 64, 64).permute(1, 2, 0).numpy()

    def changes(strength):
        torch.manual_seed(0)
        crops = MultiCrop(32, local_crops=30, color_strength=strength, mean=[0.0], std=[1.0])
        result = crops(dict(img=image))['img']['local_crops']
        return (result - color).abs().amax(dim=(1, 2, 3))

    assert changes(0.0).max() < 1e-5  # rounding of the resampling and of the blur
    weak, strong = changes(0.25), changes(1.0)
    assert 0.01 < 2 * weak.mean() < strong.mean() < changes(2.0).mean()
    for strength in (-0.1, 2.1, float('nan')):
        with pytest.raises(ValueError, match='color_strength must be from 0 to 2'):
            MultiCrop(color_strength=strength)


def failing(capfd, config, *arguments):
    forget_runs()
    assert train.main([str(config), *map(str, arguments)]) == 2
    return capfd.readouterr().err.splitlines()[-1]


def test_a_list_chooses_the_images_of_a_folder(tmp_path):
    for name in ('a.png', 'b c.png', 'below/d.jpg', 'e.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / name), np.zeros((4, 4, 3), np.uint8))
    names = tmp_path / 'train.txt'
    names.write_text('b c\nbelow/d.jpg\n\na.png\n')
    settings = dict(data_root=str(tmp_path), data_prefix=dict(img_path='.'), pipeline=[])
    data = UnlabeledFolder(ann_file='train.txt', **settings)
    found = [data.get_data_info(i)['img_path'] for i in range(len(data))]
    assert [path.removeprefix(f'{tmp_path}/') for path in found] == [
        'a.png', 'b c.png', 'below/d.jpg',
    ]  # fmt: skip
    names.write_text('a.png\nf\n')
    with pytest.raises(DataError, match='names f, which is not in'):
        UnlabeledFolder(ann_file='train.txt', **settings)
    names.write_text('\n')
    with pytest.raises(DataError, match='names no images'):
        UnlabeledFolder(ann_file='train.txt', **settings)


def test_a_wrong_setting_or_too_few_images_get_one_sentence(folder, tmp_path, capfd):
    config = ROOT / 'configs/pretraining/dino_xcit_n12_16_camvid.py'
    (tmp_path / 'data').mkdir()
    shutil.copy(folder / 'a/one/deep/0.png', tmp_path / 'data')
    options = ['--work-dir', tmp_path / 'work', '--cfg-options']
    options += [f'train_dataloader.dataset.data_root={tmp_path / "data"}']
    options += ['train_dataloader.dataset.data_prefix.img_path=.']
    error = failing(capfd, config, *options)
    assert 'There are 1 images for training, which is less than one batch of 16' in error
    crops = 'train_dataloader.dataset.pipeline.1'
    error = failing(capfd, config, *options, f'{crops}.color_strength=3')
    assert error.startswith('error: A data loader of the config cannot be built')
    assert 'color_strength must be from 0 to 2, not 3' in error
    error = failing(capfd, config, *options, f'{crops}.color_strength=1')
    assert "unexpected keyword argument 'color_strength'" in error
    error = failing(capfd, config, *options, f'{crops}.mean=[0.5]')
    assert 'mean and std must have one number per channel each' in error


@pytest.mark.long
def test_bad_folders_get_one_sentence(folder, tmp_path, capfd):
    data = tmp_path / 'data'
    data.mkdir()
    config = runs.write_config(tmp_path, DINO, data, 1)
    options = ['--work-dir', tmp_path / 'work', '--no-validate', '--cfg-options']
    options += ['train_dataloader.num_workers=0', 'train_dataloader.persistent_workers=False']
    assert 'has no images: files that end in one of' in failing(capfd, config, *options)
    (data / 'one.png').write_bytes((folder / 'a/one/deep/0.png').read_bytes())
    error = failing(capfd, config, *options)
    assert 'There are 1 images for training, which is less than one batch of 4' in error
    (data / 'one.png').write_bytes(b'')
    error = failing(capfd, config, *options, 'train_dataloader.batch_size=1')
    assert 'has too few images that can be read' in error
    tiny = np.zeros((9, 9, 4), np.uint8)
    cv2.imwrite(str(data / 'one.png'), tiny)
    forget_runs()
    arguments = [config, *options, 'train_dataloader.batch_size=1']
    assert train.main([str(argument) for argument in arguments]) == 0
    assert 'one.png (9x9 pixels) and all other images that are smaller' in capfd.readouterr().out


CHANNELS = {
    'coco': """
model['data_preprocessor'] = dict(mean=[127.5], std=[63.75], bgr_to_rgb=False)
model['backbone'].update(in_channels=4, init_cfg=dict(type='Pretrained', checkpoint='{file}'))
pipeline[0] = dict(type='LoadChannels', channels=4)
train_dataloader.update(num_workers=0, persistent_workers=False)
""",
    'ade': """
model['data_preprocessor'] = dict(mean=[127.5], std=[63.75], bgr_to_rgb=False, size=(64, 64))
model['backbone'].update(in_channels=4, init_cfg=dict(type='Pretrained', checkpoint='{file}'))
pipeline[0] = dict(type='LoadChannels', channels=4)
del pipeline[4]  # PhotoMetricDistortion is for colors
train_dataloader.update(num_workers=0, persistent_workers=False)
train_dataloader['dataset']['img_suffix'] = '.npy'
param_scheduler = []
""",
}


@pytest.mark.parametrize(
    'task, template',
    [('coco', runs.DETECTOR), pytest.param('ade', runs.SEGMENTOR, marks=pytest.mark.long)],
    ids=['coco', 'ade'],
)
def test_detection_and_segmentation_train_on_four_channels(
    task, template, undisturbed, small_data, tmp_path
):
    """From the checkpoint of DINO, with images that are arrays of four channels."""
    data = shutil.copytree(small_data, tmp_path / 'data')
    for path in (data / task).rglob('*.jpg'):
        image = cv2.imread(str(path))
        np.save(path.with_suffix('.npy'), np.dstack([image, image.mean(axis=2).astype(np.uint8)]))
        path.unlink()
    for path in (data / 'coco').glob('annotations/*.json'):
        path.write_text(path.read_text().replace('.jpg', '.npy'))
    _, work_dir, _ = undisturbed
    extra = CHANNELS[task].replace('{file}', str(work_dir / 'epoch_4.pth'))
    narrow = template.replace('embed_dims=32', 'embed_dims=16').replace(
        'num_heads=4', 'num_heads=2'
    )
    narrow = narrow.replace('in_channels=[32]', 'in_channels=[16]', 1)
    config = runs.write_config(tmp_path, narrow, data, 1, extra)
    arguments = [config, '--work-dir', tmp_path / 'work', '--no-validate']
    assert train.main([str(argument) for argument in arguments]) == 0
    (checkpoint,) = (tmp_path / 'work').glob('*_1.pth')
    stem = runs.load(checkpoint)['state_dict']['backbone.patch_embed.layers.0.conv.weight']
    assert stem.shape[1] == 4 and stem.isfinite().all()
