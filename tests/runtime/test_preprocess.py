"""Preprocessing, against mmcv's own transforms and mmdet's data preprocessor."""

import mmcv.transforms
import numpy as np
import pytest
import torch
from mmdet.models import DetDataPreprocessor

from xcit_mm_runtime.preprocess import resize_image, to_planes

RESIZES = [
    {'scale': (1333, 800), 'keep_ratio': True},
    {'scale': (2048, 512), 'keep_ratio': True},
    {'scale': (97, 61), 'keep_ratio': False},
    {'scale': 75, 'keep_ratio': True},
    {'scale_factor': 1.0},
    {'scale_factor': 0.37},
]


@pytest.mark.parametrize('resize', RESIZES, ids=str)
@pytest.mark.parametrize('size', [(64, 64), (375, 500), (101, 33), (2, 3)])
def test_images_are_resized_as_by_mmcv(size, resize):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    expected = mmcv.transforms.Resize(**resize)({'img': image})['img']
    assert (resize_image(image, resize) == expected).all()


def test_images_are_normalized_as_by_mmdet():
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3), np.uint8)
    statistics = {'mean': [123.675, 116.28, 103.53], 'std': [58.395, 57.12, 57.375]}
    reference = DetDataPreprocessor(**statistics, bgr_to_rgb=True)
    inputs = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    from mmdet.structures import DetDataSample

    data = reference({'inputs': [inputs], 'data_samples': [DetDataSample(metainfo={})]})
    planes = to_planes(image[None], 'rgb', **statistics, dtype='float32')
    assert planes.dtype == np.float32 and planes.flags.c_contiguous
    assert (planes == data['inputs'].numpy()).all()
    raw = to_planes(image[None], 'bgr', None, None, 'uint8')
    assert raw.dtype == np.uint8 and (raw[0] == image.transpose(2, 0, 1)).all()


def test_an_image_that_is_too_thin_to_be_resized_is_refused():
    with pytest.raises(ValueError, match='too thin'):
        resize_image(np.zeros((1, 4000, 3), np.uint8), {'scale': (100, 60), 'keep_ratio': True})
