"""Images and models are loaded for the pictures as for detectors."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.visualization import Normalize, load_subject
from xcit_mm.visualization.images import as_rgb
from xcit_mm.visualization.layers import spread
from xcit_mm.visualization.pictures import unavailable

DETECTION = 'configs/detection/mask_rcnn_xcit_n12_16_3x.py'
SEGMENTATION = 'configs/segmentation/sem_fpn_xcit_n12_16_80k.py'


def test_images_of_every_kind_become_rgb(image):
    gray = image[..., 0]
    alpha = np.dstack([image, gray])
    sixteen = image.astype(np.uint16) * 257
    for given in (image, alpha, sixteen):
        np.testing.assert_array_equal(as_rgb(given), image)
    for given in (gray, gray[..., None]):
        np.testing.assert_array_equal(as_rgb(given), np.dstack([gray] * 3))
    for wrong in (image / 255, 'image.png', torch.zeros(3, 4)):
        with pytest.raises(TypeError, match='uint8 or uint16'):
            as_rgb(wrong)
    for wrong in (image[None], image[..., :2], image[:0]):
        with pytest.raises(ValueError, match='height, width'):
            as_rgb(wrong)


@pytest.mark.parametrize('rgb', [True, False])
def test_normalization_is_the_detectors(rgb, image):
    from mmdet.models import DetDataPreprocessor

    mean, std = (103.0, 116.0, 123.0), (1.0, 2.0, 3.0)
    theirs = DetDataPreprocessor(mean=mean, std=std, bgr_to_rgb=rgb)
    bgr = torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)
    expected = theirs({'inputs': [bgr], 'data_samples': None})['inputs']
    torch.testing.assert_close(Normalize(mean, std, rgb)(image), expected)
    read_only = image.copy()
    read_only.flags.writeable = False
    torch.testing.assert_close(Normalize(mean, std, rgb)(read_only), expected)


@pytest.mark.parametrize('path', [DETECTION, SEGMENTATION])
def test_the_backbone_of_a_detector_or_segmentor(path, tmp_path, pytestconfig):
    cfg = Config.fromfile(pytestconfig.rootpath / path)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, tmp_path / 'epoch_1.pth')
    cfg = Config.fromfile(pytestconfig.rootpath / path)
    cfg.model.data_preprocessor.mean = [1.0, 2.0, 3.0]
    subject = load_subject(str(tmp_path / 'epoch_1.pth'), cfg)
    without_config = load_subject(str(tmp_path / 'epoch_1.pth'))
    for loaded in (subject, without_config):
        expected = model.backbone.state_dict()
        found = loaded.backbone.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        assert not loaded.backbone.training and loaded.trained_pyramid
    assert subject.preprocess == Normalize((1.0, 2.0, 3.0))
    assert without_config.preprocess == Normalize()
    assert unavailable(subject).keys() == {'class_attention'}


@pytest.mark.parametrize('num_classes', [10, 0])
def test_a_classifier_by_its_weights_or_by_a_config(num_classes, tmp_path):
    model = XCiTClassifier('t12', patch_size=8, num_classes=num_classes)
    torch.save({'model': model.state_dict()}, tmp_path / 'weights.pth')
    cfg = Config({'model': dict(type='XCiTClassifier', arch='t12', patch_size=8,
                                num_classes=num_classes)})  # fmt: skip
    for config in (None, cfg):
        backbone = load_subject(str(tmp_path / 'weights.pth'), config).backbone
        assert isinstance(backbone, XCiTClassifier) and backbone.num_classes == num_classes
        pairs = zip(backbone.parameters(), model.parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_a_backbone_from_classifier_weights_has_no_trained_pyramid(tmp_path):
    torch.save(XCiTClassifier('n12', 16).state_dict(), tmp_path / 'weights.pth')
    cfg = Config({'model': dict(type=XCiT, arch='n12', patch_size=16)})
    subject = load_subject(str(tmp_path / 'weights.pth'), cfg)
    assert type(subject.backbone) is XCiT
    assert 'no weights for the pyramid' in unavailable(subject)['pyramid']


def test_loading_errors_are_explained(tmp_path):
    torch.save({'conv.weight': torch.zeros(3)}, tmp_path / 'other.pth')
    with pytest.raises(ValueError, match='no XCiT in a known format'):
        load_subject(str(tmp_path / 'other.pth'))
    odd = dict(embed_dims=48, depth=2, num_heads=4)
    torch.save(XCiT(odd, 16, out_indices=(1,), strides=(4,)).state_dict(), tmp_path / 'odd.pth')
    with pytest.raises(ValueError, match='give a config'):
        load_subject(str(tmp_path / 'odd.pth'))
    with pytest.raises(ValueError, match='no XCiT or XCiTClassifier'):
        load_subject(str(tmp_path / 'odd.pth'), Config({'model': dict(type='ResNet')}))
    with pytest.raises(RuntimeError, match='embed_dims 128 in the config, 48 in the file'):
        load_subject(str(tmp_path / 'odd.pth'), Config({'model': dict(type='XCiT', arch='n12')}))


def test_layers_are_spread_over_the_depth():
    assert spread(12, 6) == [2, 4, 6, 8, 10, 12]
    assert spread(24, 6) == [4, 8, 12, 16, 20, 24]
    assert spread(2, 6) == [1, 2] and spread(1, 6) == [1]
