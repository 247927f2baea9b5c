"""A detector is evaluated on the images of its data set."""

import json
from types import SimpleNamespace

import pytest
import torch
from mmdet.datasets import CocoDataset
from mmdet.evaluation import CocoMetric

from xcit_mm.engine.evaluated import evaluate_own_images
from xcit_mm.errors import UserError


def loop_on(dataset, ann_file):
    metric = CocoMetric(ann_file=str(ann_file), metric='bbox')
    metric.dataset_meta = dataset.metainfo
    parts = dict(
        dataloader=SimpleNamespace(dataset=dataset), evaluator=SimpleNamespace(metrics=[metric])
    )
    return SimpleNamespace(**parts), metric


@pytest.fixture
def data(small_shapes):
    """A function that returns the data set, of some images, and its annotation file."""
    file = small_shapes / 'coco/annotations/instances_val2017.json'
    categories = json.loads(file.read_text())['categories']
    classes = tuple(category['name'] for category in categories)

    def build(**settings):
        return CocoDataset(
            data_root=f'{small_shapes}/coco/',
            ann_file='annotations/instances_val2017.json',
            data_prefix=dict(img='val2017/'),
            metainfo=dict(classes=classes),
            test_mode=True,
            **settings,
        )

    return build, file


def score(metric, dataset):
    """The AP of perfect detections in all images of a data set."""
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        objects = [one for one in info['instances'] if not one['ignore_flag']]
        found = dict(
            bboxes=torch.tensor([one['bbox'] for one in objects]),
            scores=torch.ones(len(objects)),
            labels=torch.tensor([one['bbox_label'] for one in objects]),
        )
        shape = info['height'], info['width']
        metric.process({}, [dict(pred_instances=found, img_id=info['img_id'], ori_shape=shape)])
    return metric.evaluate(len(dataset))['coco/bbox_mAP']


def test_images_that_indices_leave_out_are_not_missed(data):
    build, file = data
    dataset = build(indices=1)
    loop, metric = loop_on(dataset, file)
    assert score(metric, dataset) < 1, 'mmdet does this itself: evaluate_own_images is obsolete'
    loop, metric = loop_on(dataset, file)
    evaluate_own_images(loop, 'val')
    assert score(metric, dataset) == 1


def test_the_annotations_of_other_images_are_refused(data, tmp_path):
    build, file = data
    content = json.loads(file.read_text())
    other = tmp_path / 'other.json'
    for key, value in (('id', 10_000), ('file_name', 'other.jpg')):
        changed = json.loads(json.dumps(content))
        changed['images'][0][key] = value
        other.write_text(json.dumps(changed))
        loop, _ = loop_on(build(), other)
        with pytest.raises(UserError, match=r'val_evaluator.ann_file lacks 1 of the \d+ images'):
            evaluate_own_images(loop, 'val')
