"""mmseg's ``IoUMetric`` that keeps the values of each class. Importing this module registers it."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.registry import METRICS
from mmseg.evaluation import IoUMetric


@METRICS.register_module()
class PerClassIoUMetric(IoUMetric):
    """``IoUMetric`` with :attr:`per_class`: for each class, its IoU, Acc and so on in percent."""

    per_class: dict[str, dict[str, float]]
    #: Whether to count :attr:`confusion`, which a report is drawn from.
    keep_details = False
    #: Pixels by class in the ground truth (rows) and in the prediction (columns).
    confusion: torch.Tensor

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """As in mmseg."""
        before = len(self.results)
        super().process(data_batch, data_samples)
        if self.format_only or not self.keep_details:
            return
        # The areas of an image travel between processes; its pairs of classes go with them.
        for i, sample in enumerate(data_samples, before):
            self.results[i] = (*self.results[i], self._count_pairs(sample))

    def _count_pairs(self, sample: dict) -> torch.Tensor:
        """Return the pairs of classes of an image's pixels, sparse: most never meet."""
        classes = len(self.dataset_meta['classes'])
        found = sample['pred_sem_seg']['data'].flatten().cpu().long()
        truth = sample['gt_sem_seg']['data'].flatten().cpu().long()
        valid = (truth != self.ignore_index) & (truth < classes)
        pairs = truth[valid] * classes + found[valid]
        return pairs.bincount(minlength=classes**2).view(classes, classes).to_sparse()

    def compute_metrics(self, results: list) -> dict[str, float]:
        """As in mmseg."""
        if self.keep_details and results:
            classes = len(self.dataset_meta['classes'])
            start = torch.zeros(classes, classes, dtype=torch.long)
            self.confusion = sum((result[4] for result in results), start)
            results = [result[:4] for result in results]
        return super().compute_metrics(results)

    def total_area_to_metrics(self, *args: Any) -> dict[str, Any]:
        """As in mmseg."""
        found = IoUMetric.total_area_to_metrics(*args)
        self.per_class = {
            name: {
                key: round(float(values[i]) * 100, 2)
                for key, values in found.items()
                if key != 'aAcc'
            }
            for i, name in enumerate(self.dataset_meta['classes'])
        }
        return found
