"""mmdet's ``CocoMetric`` that keeps the AP of each class. Importing this module registers it."""

import tempfile
from typing import Any

from mmengine.registry import METRICS

from ..compat.ragged_recalls import FastRecallCocoMetric


@METRICS.register_module()
class PerClassCocoMetric(FastRecallCocoMetric):
    """``CocoMetric`` with :attr:`per_class`: for each class, its mAP of boxes and of masks.

    With ``classwise=True`` mmdet returns one value per class under the same name for boxes and
    masks, so this asks for one metric at a time.
    """

    per_class: dict[str, dict[str, float]]
    metrics: list[str]
    outfile_prefix: str | None

    def compute_metrics(self, results: list) -> dict[str, float]:
        """As in mmdet, without the values per class, which :attr:`per_class` gets."""
        metrics, prefix, found = self.metrics, self.outfile_prefix, {}
        self.per_class = {name: {} for name in self.dataset_meta['classes']}
        self.files: dict[str, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            self.outfile_prefix = prefix or f'{folder}/results'
            try:
                for metric in metrics:
                    self.metrics = [metric]
                    values = super().compute_metrics(results)
                    for name, own in self.per_class.items():
                        if f'{name}_precision' in values:
                            own[f'{metric}_mAP'] = float(values.pop(f'{name}_precision'))
                    found.update(values)
            finally:
                self.metrics, self.outfile_prefix = metrics, prefix
        return found

    def results2json(self, *args: Any) -> dict[str, str]:
        """As in mmdet, once for all metrics."""
        self.files = self.files or super().results2json(*args)
        return self.files
