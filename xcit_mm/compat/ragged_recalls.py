"""``--eval proposal_fast`` with today's numpy.

Obstacle: mmdet puts the overlaps of all images, one matrix per image, into one ``np.array``. Images
have different numbers of boxes, and since 1.24 numpy refuses to make an array of matrices of
different shapes.

What this does: registers a metric that asks mmdet for the recalls of one image at a time and adds
them up. Importing this module registers it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmdet.evaluation import CocoMetric, eval_recalls
from mmengine.registry import METRICS


@METRICS.register_module()
class FastRecallCocoMetric(CocoMetric):
    """mmdet's ``CocoMetric`` with ``proposal_fast`` for images with any number of boxes."""

    def fast_eval_recall(
        self, results: list[dict], proposal_nums: Sequence[int], iou_thrs: Sequence[float], **_: Any
    ) -> np.ndarray:
        """Return the share of objects that proposals cover, averaged over the IoU thresholds."""
        found, total = np.zeros((len(proposal_nums), len(iou_thrs))), 0
        for result in results:
            boxes = self._boxes(result['img_id'])
            if len(boxes):
                pair = [boxes], [result['bboxes']]
                found += len(boxes) * eval_recalls(*pair, proposal_nums, iou_thrs, 'silent')
                total += len(boxes)
        return found.mean(axis=1) / total if total else np.full(len(proposal_nums), np.nan)

    def _boxes(self, image: int) -> np.ndarray:
        annotations = self._coco_api.load_anns(self._coco_api.get_ann_ids(img_ids=image))
        boxes = [a['bbox'] for a in annotations if not (a.get('ignore') or a.get('iscrowd'))]
        return np.array([[x, y, x + w, y + h] for x, y, w, h in boxes], dtype=np.float32)
