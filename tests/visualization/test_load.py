"""Images and models are loaded for the pictures as for detectors."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm import visualization
from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.visualization import Normalize, PyramidLevel, load_subject
from xcit_mm.visualization.images import as_rgb
from xcit_mm.visualization.observe import spread
from xcit_mm.visualization.pictures import unavailable

DETECTOR = 'configs/detection/mask_rcnn_xcit_n12_16_3x.py'


def test_images_of_every_kind_become_rgb(image):
    gray = image[..., 0]
    for given in (image, np.dstack([image, gray]), image.astype(np.uint16) * 257):
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
    read_only = image.copy()
    read_only.flags.writeable = False
    torch.testing.assert_close(Normalize(mean, std, rgb)(read_only), expected)


@pytest.mark.parametrize('old, new', [('Normalise', Normalize), ('Level', PyramidLevel)])
def test_old_names_work_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=new.__name__):
        assert getattr(visualization, old) is new


def assert_same_weights(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_backbone_of_a_detector(tmp_path, pytestconfig):
    cfg = Config.fromfile(pytestconfig.rootpath / DETECTOR)
    cfg.model.data_preprocessor.mean = [1.0, 2.0, 3.0]
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.copy().model)
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, tmp_path / 'epoch_1.pth')
    for config, normalize in ((cfg, Normalize((1.0, 2.0, 3.0))), (None, Normalize())):
        subject = load_subject(str(tmp_path / 'epoch_1.pth'), config)
        assert_same_weights(subject.backbone, model.backbone)
        assert not subject.backbone.training and subject.trained_pyramid
        assert subject.preprocess == normalize
        assert unavailable(subject).keys() == {'class_attention'}


@pytest.mark.parametrize('num_classes', [10, 0])
def test_a_classifier_by_its_weights_or_by_a_config(num_classes, tmp_path):
    settings = dict(arch='t12', patch_size=8, num_classes=num_classes)
    model = XCiTClassifier(**settings)
    torch.save({'model': model.state_dict()}, tmp_path / 'weights.pth')
    for config in (None, Config({'model': dict(type='XCiTClassifier', **settings)})):
        backbone = load_subject(str(tmp_path / 'weights.pth'), config).backbone
        assert isinstance(backbone, XCiTClassifier) and backbone.num_classes == num_classes
        assert_same_weights(backbone, model)


def test_a_backbone_from_classifier_weights_has_no_trained_pyramid(tmp_path):
    torch.save(XCiTClassifier('n12', 16).state_dict(), tmp_path / 'weights.pth')
    cfg = Config({'model': dict(type=XCiT, arch='n12', patch_size=16)})
    subject = load_subject(str(tmp_path / 'weights.pth'), cfg)
    assert type(subject.backbone) is XCiT
    assert 'no weights for the pyramid' in unavailable(subject)['pyramid']


@pytest.mark.parametrize(
    'weights, model, message',
    [
        ('other', None, 'no XCiT in a known format'),
        ('odd', None, 'give a config'),
        ('odd', dict(type='ResNet'), 'no XCiT or XCiTClassifier'),
        ('odd', dict(type='XCiT', arch='n12'), 'embed_dims 128 in the config, 48 in the file'),
    ],
)
def test_loading_errors_are_explained(weights, model, message, tmp_path):
    odd = dict(embed_dims=48, depth=2, num_heads=4)
    states = {
        'other': {'conv.weight': torch.zeros(3)},
        'odd': XCiT(odd, 16, out_indices=(1,), strides=(4,)).state_dict(),
    }
    torch.save(states[weights], tmp_path / 'weights.pth')
    with pytest.raises((ValueError, RuntimeError), match=message):
        load_subject(str(tmp_path / 'weights.pth'), model and Config({'model': model}))


@pytest.mark.parametrize(
    'depth, expected',
    [(12, [2, 4, 6, 8, 10, 12]), (24, [4, 8, 12, 16, 20, 24]), (2, [1, 2]), (1, [1])],
)
def test_layers_are_spread_over_the_depth(depth, expected):
    assert spread(depth, 6) == expected
