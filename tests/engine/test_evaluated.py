"""A detector is evaluated on the images of its dataset, and on all objects in them."""

import json
from types import SimpleNamespace

import pytest
import torch
from mmdet.datasets import CocoDataset
from mmdet.evaluation import CocoMetric

from xcit_mm.engine.coco_metric import ConsistentCocoMetric
from xcit_mm.engine.evaluated import find_low_limits, restrict_eval_to_dataset, use_own_metrics
from xcit_mm.errors import UserError


@pytest.fixture
def data(tmp_path):
    """A function that returns a dataset with so many squares per image, and its annotations."""

    def build(*objects, **settings):
        squares = [
            (image, 20 * (i % 20), 20 * (i // 20))
            for image, count in enumerate(objects)
            for i in range(count)
        ]
        content = dict(
            images=[dict(id=n, file_name=f'{n}.jpg', width=400, height=400)
                    for n in range(len(objects))],
            categories=[dict(id=1, name='cell')],
            annotations=[
                dict(id=i, image_id=n, category_id=1, bbox=[x, y, 12, 12], area=144, iscrowd=0,
                     segmentation=[[x, y, x + 12, y, x + 12, y + 12, x, y + 12]])
                for i, (n, x, y) in enumerate(squares, 1)
            ],
        )  # fmt: skip
        file = tmp_path / 'cells.json'
        file.write_text(json.dumps(content))
        settings |= dict(metainfo=dict(classes=('cell',)), test_mode=True)
        return CocoDataset(ann_file=str(file), data_prefix=dict(img=''), **settings), file

    return build


def loop_on(dataset, ann_file, kind=CocoMetric, **settings):
    metric = kind(ann_file=str(ann_file), **{'metric': 'bbox', **settings})
    metric.dataset_meta = dataset.metainfo
    loader = SimpleNamespace(dataset=dataset)
    return SimpleNamespace(dataloader=loader, evaluator=SimpleNamespace(metrics=[metric])), metric


def evaluate(metric, dataset, share=1.0):
    """Return the metrics of perfect detections of a share of the objects of each image."""
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        objects = info['instances'][: round(share * len(info['instances']))]
        shape = info['height'], info['width']
        masks = torch.zeros(len(objects), *shape, dtype=torch.bool)
        boxes = torch.tensor([one['bbox'] for one in objects]).reshape(-1, 4)
        for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
            mask[top:bottom, left:right] = True
        found = dict(
            bboxes=boxes,
            scores=torch.ones(len(objects)),
            labels=torch.zeros(len(objects), dtype=torch.long),
            masks=masks,
        )
        metric.process({}, [dict(pred_instances=found, img_id=info['img_id'], ori_shape=shape)])
    return metric.evaluate(len(dataset))


def test_images_that_indices_leave_out_are_not_missed(data):
    dataset, file = data(3, 2, indices=1)
    loop, metric = loop_on(dataset, file)
    assert evaluate(metric, dataset)['coco/bbox_mAP'] < 1, 'mmdet does this itself'
    loop, metric = loop_on(dataset, file)
    restrict_eval_to_dataset(loop, 'val')
    assert evaluate(metric, dataset)['coco/bbox_mAP'] == 1


def test_annotations_may_lack_iscrowd_and_be_counted_from_0(data):
    dataset, file = data(3, 2)
    content = json.loads(file.read_text())
    for one in content['annotations']:
        one['id'] -= 1
        del one['iscrowd']
    file.write_text(json.dumps(content))
    kinds = ['bbox', 'segm', 'proposal_fast']
    _, metric = loop_on(dataset, file, ConsistentCocoMetric, metric=kinds)
    found = evaluate(metric, dataset)
    names = ('coco/bbox_mAP', 'coco/segm_mAP', 'coco/AR@100')
    assert [found[name] for name in names] == [1, 1, 1]


@pytest.mark.parametrize('key, value', [('id', 10_000), ('file_name', 'other.jpg')])
def test_the_annotations_of_other_images_are_refused(key, value, data):
    dataset, file = data(3, 2)
    content = json.loads(file.read_text())
    content['images'][0][key] = value
    file.write_text(json.dumps(content))
    loop, _ = loop_on(dataset, file)
    with pytest.raises(UserError, match=r'val_evaluator.ann_file lacks 1 of the 2 images'):
        restrict_eval_to_dataset(loop, 'val')


def test_every_ap_counts_as_many_detections_as_an_image_has_objects(data):
    dataset, file = data(150)
    _, theirs = loop_on(dataset, file)
    found = evaluate(theirs, dataset)
    assert found['coco/bbox_mAP'] < found['coco/bbox_mAP_50'] == 1, 'mmdet has one limit itself'
    settings = dict(kind=ConsistentCocoMetric, metric=['bbox', 'segm'], classwise=True)
    loop, metric = loop_on(dataset, file, **settings)
    assert restrict_eval_to_dataset(loop, 'val') == metric.max_dets == 150
    found = evaluate(metric, dataset)
    without = {f'coco/{kind}_mAP_{size}' for kind in ('bbox', 'segm') for size in 'ml'}
    assert {key for key, value in found.items() if value == -1} == without
    assert {value for key, value in found.items() if key not in without} == {1}
    assert metric.per_class == {'cell': {'bbox_mAP': 1, 'segm_mAP': 1}}


@pytest.mark.parametrize('share', [0.5, 1.0])
def test_up_to_100_objects_are_evaluated_as_in_mmdet(share, data):
    dataset, file = data(100)
    both = dict(metric=['bbox', 'proposal'])
    _, theirs = loop_on(dataset, file, **both)
    loop, ours = loop_on(dataset, file, kind=ConsistentCocoMetric, **both)
    assert restrict_eval_to_dataset(loop, 'val') == ours.max_dets == 100
    assert evaluate(ours, dataset, share) == evaluate(theirs, dataset, share)


def test_a_detector_that_finds_nothing_scores_zero(data):
    dataset, file = data(3, 2)
    every = ['bbox', 'segm', 'proposal', 'proposal_fast']
    loop, metric = loop_on(dataset, file, kind=ConsistentCocoMetric, metric=every)
    restrict_eval_to_dataset(loop, 'val')
    found = evaluate(metric, dataset, share=0)
    rows = {f'coco/{kind}_mAP{which}' for kind in ('bbox', 'segm') for which in ('', '_50', '_75')}
    assert rows | {'coco/AR@100', 'coco/AR_s@1000'} <= found.keys()
    assert set(found.values()) <= {0, -1} and not any(found[row] for row in rows)


def test_limits_of_a_model_below_the_number_of_objects_are_found():
    two_stages = dict(rpn=dict(max_per_img=1000), rcnn=dict(max_per_img=100, score_thr=0.05))
    model = dict(test_cfg=two_stages, train_cfg=dict(rpn_proposal=dict(max_per_img=10)))
    assert find_low_limits(model, 150) == ['model.test_cfg.rcnn.max_per_img=150']
    assert find_low_limits(dict(module=model), 1500) == [
        'model.test_cfg.rpn.max_per_img=1500',
        'model.test_cfg.rcnn.max_per_img=1500',
    ]
    for settings, objects in ((model, 100), ({}, 150), (dict(test_cfg=dict(max_per_img=-1)), 150)):
        assert not find_low_limits(settings, objects)


@pytest.mark.parametrize('kind', ['CocoMetric', 'mmdet.CocoMetric', CocoMetric])
def test_our_metrics_replace_theirs_in_any_form_of_a_config(kind):
    ours = ConsistentCocoMetric.__name__
    other = dict(type='DumpDetResults', out_file_path='a.pkl')
    several = dict(type='MultiDatasetsEvaluator', metrics=[dict(type=kind), dict(type='IoUMetric')])
    evaluators = [dict(type=kind, metric='bbox'), other, several]
    use_own_metrics(evaluators)
    assert evaluators == [
        dict(type=ours, metric='bbox'),
        other,
        dict(several, metrics=[dict(type=ours), dict(type='PerClassIoUMetric')]),
    ]


def test_metrics_without_images_of_their_own_are_left_alone(data):
    """As that of panoptic segmentation, whose package is on no index."""
    loop, metric = loop_on(*data(3))
    del metric.img_ids
    assert restrict_eval_to_dataset(loop, 'val') == 0
    assert not hasattr(metric, 'img_ids')


@pytest.mark.parametrize('polygon', [[], [1.0, 2.0], [1.0, 2.0, 30.0, 2.0, 9.0]])
def test_polygons_without_area_are_ignored_as_in_training(data, polygon):
    dataset, file = data(3, 2)
    content = json.loads(file.read_text())
    content['annotations'][0]['segmentation'] = [polygon] if polygon else []
    for index in (1, 2):  # others have one more polygon
        content['annotations'][index]['segmentation'].append(polygon)
    file.write_text(json.dumps(content))
    _, metric = loop_on(dataset, file, ConsistentCocoMetric, metric=['segm', 'bbox'])
    found = evaluate(metric, dataset)
    assert found['coco/bbox_mAP'] == 1, 'the box of such an object counts'
    assert found['coco/segm_mAP'] > 0.5
