"""mmdet's ``CocoMetric`` with one limit on detections. Importing this module registers it."""

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mmdet.datasets.api_wrappers import COCO, COCOeval, COCOevalMP
from mmengine.fileio import load
from mmengine.registry import METRICS

from ..compat.ragged_recalls import FastRecallCocoMetric

# What mmdet reports unless metric_items says otherwise.
PRECISIONS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
RECALLS = ('AR@100', 'AR@300', 'AR@1000', 'AR_s@1000', 'AR_m@1000', 'AR_l@1000')


@METRICS.register_module()
class ConsistentCocoMetric(FastRecallCocoMetric):
    """``CocoMetric`` that counts the same detections for every AP, and keeps the AP of each class.

    mmdet counts up to 100 detections per image and class for mAP, and up to 1,000 for every other
    AP. If there are no detections at all, it reports nothing; here, they score 0.
    """

    #: The limit on detections per image and class of each AP. COCO's is 100.
    max_dets = 100
    #: Whether to keep :attr:`evaluations`, which a report is drawn from.
    keep_details = False
    #: The evaluation of boxes (``bbox``) and of masks (``segm``), with the match of each object.
    evaluations: dict[str, COCOeval]
    #: For each class, its mAP of boxes and of masks; NaN for a class without objects.
    per_class: dict[str, dict[str, float]]
    metrics: list[str]
    metric_items: Sequence[str] | None
    outfile_prefix: str | None

    def compute_metrics(self, results: list) -> dict[str, float]:
        """As in mmdet."""
        metrics, prefix = self.metrics, self.outfile_prefix
        self.per_class = {name: {} for name in self.dataset_meta['classes']}
        self.evaluations = {}
        with tempfile.TemporaryDirectory() as folder:
            self.outfile_prefix = prefix or f'{folder}/results'
            self.metrics = [metric for metric in metrics if metric == 'proposal_fast']
            try:
                found = super().compute_metrics(results)
            finally:
                self.metrics, self.outfile_prefix = metrics, prefix
            if not self.format_only:
                for metric in metrics:
                    if metric != 'proposal_fast':
                        found.update(self._evaluate(metric))
        return found

    def results2json(self, *args: Any) -> dict[str, str]:
        """As in mmdet."""
        self.files: dict[str, str] = super().results2json(*args)
        return self.files

    def _evaluate(self, metric: str) -> dict[str, float]:
        """Evaluate ``bbox``, ``segm`` or ``proposal``."""
        if metric not in self.files:
            raise KeyError(f'{metric} is not in results')
        complete_annotations(self._coco_api)
        predictions = load(self.files[metric])
        if metric == 'segm':
            for prediction in predictions:
                prediction.pop('bbox')  # else pycocotools takes the area of the box
        if predictions:
            detections = self._coco_api.loadRes(predictions)
        else:  # which pycocotools refuses
            detections = COCO()
            detections.dataset = {'annotations': []}
        kind = COCOevalMP if self.use_mp_eval else COCOeval
        run = kind(self._coco_api, detections, 'bbox' if metric == 'proposal' else metric)
        run.params.catIds, run.params.imgIds = self.cat_ids, self.img_ids
        run.params.maxDets = sorted({*self.proposal_nums, self.max_dets})
        run.params.iouThrs = self.iou_thrs
        run.params.useCats = int(metric != 'proposal')
        annotations = self._coco_api.anns
        if metric == 'segm':
            self._coco_api.anns = {i: with_usable_mask(one) for i, one in annotations.items()}
        run.evaluate()
        self._coco_api.anns = annotations
        run.accumulate()
        values = dict(self._items(run))
        items = self.metric_items or (RECALLS if metric == 'proposal' else PRECISIONS)
        if unknown := [item for item in items if item not in values]:
            raise KeyError(f'metric item {unknown[0]!r} is not one of {", ".join(values)}')
        if metric == 'proposal':
            return {item: values[item] for item in items}
        if self.keep_details:
            self.evaluations[metric] = run
        found = {f'{metric}_{item}': values[item] for item in items}
        return found | self._evaluate_classes(metric, run)

    def _items(self, run: COCOeval) -> Iterator[tuple[str, float]]:
        """Yield mmdet's metric items; -1 where there are no objects."""
        yield from self.average_precisions(self.precisions(run))
        recall, limits = run.eval['recall'], run.params.maxDets
        # IoU, class, area, limit. The names are those of the default limits, as in mmdet.
        for name, limit in zip(('100', '300', '1000'), sorted(self.proposal_nums), strict=False):
            yield f'AR@{name}', mean(recall[..., 0, limits.index(limit)])
        for area, name in enumerate('sml', 1):
            at = limits.index(max(self.proposal_nums))
            yield f'AR_{name}@1000', mean(recall[..., area, at])

    def precisions(self, run: COCOeval) -> np.ndarray:
        """Return the precision by IoU threshold, recall, class and area; -1 without objects."""
        return run.eval['precision'][..., run.params.maxDets.index(self.max_dets)]

    def average_precisions(self, precision: np.ndarray) -> Iterator[tuple[str, float]]:
        """Yield mmdet's metric items of precision for all or some of the classes."""
        yield 'mAP', mean(precision[..., 0])
        for percent in (50, 75):
            is_chosen = np.isclose(self.iou_thrs, percent / 100)
            yield f'mAP_{percent}', mean(precision[is_chosen, ..., 0])
        for area, name in enumerate('sml', 1):
            yield f'mAP_{name}', mean(precision[..., area])

    def _evaluate_classes(self, metric: str, run: COCOeval) -> dict[str, float]:
        """Set :attr:`per_class`; with ``classwise``, return it in mmdet's form."""
        precision = self.precisions(run)[..., 0]
        for category, values in zip(run.params.catIds, np.moveaxis(precision, 2, 0), strict=True):
            (entry,) = self._coco_api.loadCats([category])
            value = mean(values)
            self.per_class[entry['name']][f'{metric}_mAP'] = np.nan if value == -1 else value
        if not self.classwise:
            return {}
        key = f'{metric}_mAP'
        return {f'{name}_precision': v[key] for name, v in self.per_class.items() if key in v}


def complete_annotations(coco: COCO) -> None:
    """Give annotations what pycocotools needs: ``iscrowd``, and ids that are not 0.

    It takes an object with the id 0 for "no object", so that whoever finds it finds nothing.

    Args:
        coco (COCO): The ground truth, changed in place.
    """
    for annotation in coco.anns.values():
        annotation.setdefault('iscrowd', 0)
    if 0 in coco.anns:
        annotation = coco.anns.pop(0)
        annotation['id'] = max(coco.anns, default=0) + 1
        coco.anns[annotation['id']] = annotation


def with_usable_mask(annotation: dict[str, Any]) -> dict[str, Any]:
    """Return an annotation without polygons that pycocotools refuses; ignored if none is left.

    mmdet does the same with the annotations that it trains on.

    Args:
        annotation (dict): COCO's entry of an object; not changed.
    """
    polygons = annotation.get('segmentation', [])
    if not isinstance(polygons, list):
        return annotation
    usable = [polygon for polygon in polygons if len(polygon) >= 6 and len(polygon) % 2 == 0]
    if len(usable) == len(polygons) > 0:
        return annotation
    if usable:
        return {**annotation, 'segmentation': usable}
    return {**annotation, 'segmentation': [[0.0] * 6], 'iscrowd': 1}


def mean(values: np.ndarray) -> float:
    """Return the mean of precisions or recalls to three digits; -1 if there are none, as COCO."""
    values = values[values > -1]
    return round(float(values.mean()), 3) if values.size else -1.0
