"""mmseg's ``IoUMetric`` that keeps the values of each class. Importing this module registers it."""

from typing import Any

from mmengine.registry import METRICS
from mmseg.evaluation import IoUMetric


@METRICS.register_module()
class PerClassIoUMetric(IoUMetric):
    """``IoUMetric`` with :attr:`per_class`: for each class, its IoU, Acc and so on in percent."""

    per_class: dict[str, dict[str, float]]

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
