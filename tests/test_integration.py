"""XCiT in other people's models: the installed libraries' configs with the backbone replaced."""

import faulthandler

import numpy as np
import pytest
import torch
from mmengine.hub import get_config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint

from dev.soak import save_random_weights
from tests.weights.test_formats import to_released
from xcit_mm.inference import build_inferencer

from .tiny import HEADS, recipe

WIDTH = 32
BACKBONE = dict(
    type='XCiT',
    arch=dict(embed_dims=WIDTH, depth=4, num_heads=4),
    patch_size=16,
    out_indices=(0, 1, 2, 3),
)
DETECTORS = {
    'retinanet/retinanet_r50_fpn_1x_coco.py': dict(neck=dict(in_channels=[WIDTH] * 4)),
    'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py': dict(neck=dict(in_channels=[WIDTH] * 4)),
    'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py': dict(neck=dict(in_channels=[WIDTH] * 4)),
    'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py': dict(neck=dict(in_channels=[WIDTH] * 4)),
}
SEGMENTORS = {
    'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': dict(
        decode_head=dict(in_channels=[WIDTH] * 4)
    ),
    'pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py': dict(
        decode_head=dict(in_channels=WIDTH), auxiliary_head=dict(in_channels=WIDTH)
    ),
    'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py': dict(
        decode_head=dict(in_channels=[WIDTH] * 4), auxiliary_head=dict(in_channels=WIDTH)
    ),
}


def build(scope, config, changes):
    cfg = get_config(f'{scope}::{config}')
    cfg.model.backbone = BACKBONE
    cfg.model.pop('pretrained', None)
    if scope == 'mmseg':
        cfg.model.data_preprocessor.size = (128, 128)
    cfg.merge_from_dict(dict(model=changes))
    replace_sync_bn(cfg)
    init_default_scope(scope)
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model


def replace_sync_bn(cfg):
    from xcit_mm.compat import revert_sync_bn

    revert_sync_bn(cfg)


def detection_batch(with_masks):
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData

    samples = []
    for _ in range(2):
        shape = dict(img_shape=(96, 128), ori_shape=(96, 128), pad_shape=(96, 128))
        meta = dict(shape, scale_factor=(1.0, 1.0), batch_input_shape=(96, 128))
        sample = DetDataSample(metainfo=meta)
        boxes = torch.tensor([[10.0, 10, 60, 70], [40, 20, 110, 80]])
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([1, 7]))
        if with_masks:
            masks = np.zeros((2, 96, 128), np.uint8)
            masks[0, 10:70, 10:60] = masks[1, 20:80, 40:110] = 1
            sample.gt_instances.masks = BitmapMasks(masks, 96, 128)
        samples.append(sample)
    images = [torch.randint(0, 256, (3, 96, 128), dtype=torch.uint8) for _ in range(2)]
    return dict(inputs=images, data_samples=samples)


def segmentation_batch():
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    samples = []
    for _ in range(2):
        sample = SegDataSample(
            metainfo=dict(img_shape=(128, 128), ori_shape=(128, 128), pad_shape=(128, 128))
        )
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 150, (1, 128, 128)))
        samples.append(sample)
    images = [torch.randint(0, 256, (3, 128, 128), dtype=torch.uint8) for _ in range(2)]
    return dict(inputs=images, data_samples=samples)


def train_and_predict(model, batch):
    model.train()
    data = model.data_preprocessor(batch, training=True)
    losses = model(**data, mode='loss')
    loss, _ = model.parse_losses(losses)
    loss.backward()
    assert torch.isfinite(loss)
    missing = [n for n, p in model.backbone.named_parameters() if p.grad is None]
    model.eval()
    with torch.no_grad():
        predictions = model(**model.data_preprocessor(batch), mode='predict')
    return predictions, missing


@pytest.mark.parametrize('config', DETECTORS)
def test_detector_trains_and_predicts(config):
    model = build('mmdet', config, DETECTORS[config])
    predictions, missing = train_and_predict(model, detection_batch('mask' in config))
    assert len(predictions) == 2 and 'bboxes' in predictions[0].pred_instances
    # FCOS and RetinaNet start at the second level.
    starts_late = 'fcos' in config or 'retinanet' in config
    assert all('pyramid.levels.0' in name for name in missing) if starts_late else not missing


@pytest.mark.parametrize('config', SEGMENTORS)
def test_segmentor_trains_and_predicts(config):
    model = build('mmseg', config, SEGMENTORS[config])
    predictions, missing = train_and_predict(model, segmentation_batch())
    assert predictions[0].pred_sem_seg.data.shape[-2:] == (128, 128)
    # PSP takes the last two levels.
    assert not missing or 'pspnet' in config


RECIPES = [(head, patch_size) for head in HEADS for patch_size in (16, 8)]


@pytest.mark.parametrize('head, patch_size', RECIPES)
def test_released_checkpoint_loads_with_nothing_missing_and_nothing_left_over(
    head, patch_size, tmp_path
):
    cfg = recipe(head, patch_size)
    init_default_scope(cfg.default_scope)
    source, target = (MODELS.build(cfg.model) for _ in range(2))
    state = source.state_dict()
    backbone = {k[9:]: v for k, v in state.items() if k.startswith('backbone.')}
    released = {f'backbone.{k}': v for k, v in to_released(backbone).items()}
    released |= {k: v for k, v in state.items() if not k.startswith('backbone.')}
    assert len(released) == len(state)
    path = tmp_path / 'released.pth'
    torch.save(dict(meta=dict(CLASSES=('a', 'b')), state_dict=released), path)
    load_checkpoint(target, str(path), strict=True)
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize('head, patch_size', RECIPES)
def test_our_configs_give_every_parameter_a_gradient(head, patch_size):
    cfg = recipe(head, patch_size)
    init_default_scope(cfg.default_scope)
    replace_sync_bn(cfg)
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (128, 128)
    model = MODELS.build(cfg.model).train()
    batch = detection_batch(True) if cfg.default_scope == 'mmdet' else segmentation_batch()
    losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
    model.parse_losses(losses)[0].backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


@pytest.fixture
def bounded_time():
    """End the run with a stack trace if it hangs."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


SHAPES = (
    'detection/mask_rcnn_xcit_n12_8_shapes.py',
    'segmentation/sem_fpn_xcit_n12_8_shapes.py',
    'segmentation/upernet_xcit_n12_8_shapes.py',
)


@pytest.mark.parametrize('config', SHAPES)
def test_inferencers_survive_spoilt_images(config, tmp_path, bounded_time):
    """They return no detections, or the first class everywhere; later images are not affected."""
    cfg = get_config(f'xcit_mm::{config}')
    checkpoint = save_random_weights(cfg, tmp_path / 'random.pth')
    inferencer = build_inferencer(cfg, cfg.default_scope, str(checkpoint), 'cpu')
    image = np.random.default_rng(0).integers(0, 256, (72, 96, 3)).astype(np.float32)
    expected = outcome(inferencer, image)
    assert len(expected.unique()) > 1
    for value in (np.nan, np.inf, -np.inf, 1e30):
        one_pixel, all_pixels = image.copy(), np.full_like(image, value)
        one_pixel[10, 20] = value
        for spoilt in (one_pixel, all_pixels):
            assert not outcome(inferencer, spoilt).any()
    assert torch.equal(outcome(inferencer, image), expected)


def outcome(inferencer, image):
    """The boxes, or the label of every pixel."""
    sample = inferencer(image, return_datasamples=True)
    if isinstance(sample, dict):
        return sample['predictions'][0].pred_instances.bboxes
    return sample.pred_sem_seg.data
