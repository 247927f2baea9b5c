"""The confusion matrix of pixels."""

import numpy as np
import pytest
import torch

from xcit_mm.engine.iou_per_class import PerClassIoUMetric

IGNORED = 255


def test_confusion_matrix_of_pixels():
    metric = PerClassIoUMetric(iou_metrics=['mIoU'])
    metric.dataset_meta = {'classes': ('sky', 'road', 'car')}
    metric.keep_details = True
    truths = [[[0, 0, 1], [1, 1, IGNORED]], [[2, 2, 2]]]
    found = [[[0, 1, 1], [1, 1, 0]], [[2, 0, 2]]]
    for truth, guess in zip(truths, found, strict=True):
        labels = {'gt_sem_seg': truth, 'pred_sem_seg': guess}
        metric.process({}, [{key: {'data': torch.tensor([v])} for key, v in labels.items()}])
    mean = metric.compute_metrics(metric.results)['mIoU']
    expected = np.array([[1, 1, 0], [0, 3, 0], [1, 0, 2]])
    np.testing.assert_array_equal(metric.confusion, expected)
    union = expected.sum(0) + expected.sum(1) - expected.diagonal()
    ious = expected.diagonal() / union * 100
    assert [row['IoU'] for row in metric.per_class.values()] == pytest.approx(ious, abs=0.005)
    assert mean == pytest.approx(ious.mean(), abs=0.005)
