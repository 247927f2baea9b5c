"""The page of a test: curves, confusion matrix, classes, and the worst errors as pictures."""

import html
import io
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
from matplotlib.figure import Figure
from mmengine.runner import Runner

from xcit_mm_runtime.draw import side_by_side
from xcit_mm_runtime.inputs import read_image
from xcit_mm_runtime.results import Detections

from ..configs import bit_depth
from ..errors import UserError
from ..html_page import html_image, html_page
from ..tables import format_table
from .testing import class_rows, describe_limit, metric_rows, value_or_none

# The confusion matrix counts matches at this overlap, as mmdet's does, or at the nearest one of AP.
IOU_THR = 0.5
# How many errors of each kind are drawn, and how large in pixels.
PICTURES = 12
SIDE = 300
# How much of the photo a picture shows: this many times the box, and at least so many pixels.
CONTEXT, MIN_CONTEXT = 2.0, 48
# More classes have no names in the legend of the curves, and no numbers in the matrix.
NAMED_CURVES, NUMBERED_CLASSES = 10, 30
TITLES = {'bbox': 'Boxes', 'segm': 'Masks'}


def keep_details(runner: Runner) -> None:
    """Let the metrics of a test keep what :func:`render_report` needs.

    Args:
        runner (Runner): Before its test.
    """
    metrics = [m for m in runner.test_loop.evaluator.metrics if hasattr(m, 'keep_details')]
    if not metrics:
        raise UserError('--report needs a test_evaluator of type CocoMetric or IoUMetric.')
    for metric in metrics:
        metric.keep_details = True


def render_report(
    runner: Runner, title: str, metrics: dict[str, float | None], score_thr: float = 0.3
) -> str:
    """Return a page about a test as HTML that needs no other file.

    Args:
        runner (Runner): After its test; see :func:`keep_details`.
        title (str): The heading.
        metrics (dict[str, float]): What the test returned.
        score_thr (float): The lowest score that counts in the confusion matrix and as a false
            positive. Defaults to 0.3.
    """
    dataset = runner.test_loop.dataloader.dataset
    body = f'<p>{len(dataset)} images. {html.escape(describe_limit(runner))}</p>'
    body += format_table(metric_rows(metrics, []), 'html')
    for metric in runner.test_loop.evaluator.metrics:
        for kind, run in getattr(metric, 'evaluations', {}).items():
            body += f'<h2>{TITLES[kind]}</h2>' + ''.join(
                _detection_section(runner, metric, run, score_thr)
            )
        if hasattr(metric, 'confusion'):
            names = dataset.metainfo['classes']
            matrix = plot_confusion(metric.confusion.numpy(), names, 'pixels')
            body += '<h2>Classes</h2>' + format_table(class_rows(runner), 'html')
            body += '<h3>Confusion matrix</h3>' + _drawing('confusion matrix', matrix)
    return html_page(title, body)


def _detection_section(runner: Runner, metric: Any, run: Any, score_thr: float) -> Iterator[str]:
    """Yield the parts of the page about boxes or masks."""
    from .detection_errors import find_errors  # here: segmentors do not need mmdet

    names = [category['name'] for category in run.cocoGt.loadCats(run.params.catIds)]
    precision, iou_thrs = metric.precisions(run), run.params.iouThrs
    iou_thr = min(iou_thrs, key=lambda threshold: abs(threshold - IOU_THR))
    errors = find_errors(run, score_thr, iou_thr, metric.max_dets)
    yield '<h3>Precision and recall</h3>'
    yield _drawing('precision-recall curves', plot_precision(precision, iou_thrs, names))
    rows: list[dict[str, Any]] = []
    for i, (name, objects) in enumerate(zip(names, errors.matrix[:-1].sum(1), strict=True)):
        if not objects:  # then it has no AP
            continue
        values = metric.average_precisions(precision[:, :, [i]])
        rows.append({'class': name, 'objects': int(objects)})
        rows[-1] |= {item: value_or_none(value) for item, value in values}
    yield '<h3>Classes and sizes</h3>' + format_table(rows, 'html')
    yield (
        '<p>Small objects have fewer than 32x32 pixels, large ones more than 96x96, as in COCO.</p>'
    )
    yield (
        '<h3>Confusion matrix</h3><p>Ground truth in rows, prediction in columns, one to one, at '
        f'an IoU of {iou_thr:.2g} and scores from {score_thr} on. Objects in the last column were '
        'not found; detections in the last row have no object. Crowds do not count.</p>'
    )
    matrix = plot_confusion(errors.matrix, [*names, 'background'], 'objects')
    yield _drawing('confusion matrix', matrix)
    draw = ErrorPainter(run, runner.test_loop.dataloader.dataset, bit_depth(runner.cfg), score_thr)
    extra, missed = errors.false_positives, errors.misses
    yield f'<h3>False positives: the highest scores of {len(extra)}</h3><div class="pictures">'
    yield ''.join(draw(error, is_miss=False) for error in extra[:PICTURES]) or 'None.'
    yield f'</div><h3>Misses: the largest objects of {len(missed)}</h3><div class="pictures">'
    yield ''.join(draw(error, is_miss=True) for error in missed[:PICTURES]) or 'None.'
    yield '</div>'


class ErrorPainter:
    """Draws an error on a part of its photo: ground truth on the left, prediction on the right.

    Args:
        run (COCOeval): The evaluation.
        dataset (BaseDataset): Where the images are.
        bit_depth (int, optional): As for ``read_image``.
        score_thr (float): The lowest score of a detection that is drawn.
    """

    def __init__(self, run: Any, dataset: Any, bit_depth: int | None, score_thr: float) -> None:
        self.run, self.bit_depth, self.score_thr = run, bit_depth, score_thr
        self.classes = list(dataset.metainfo['classes'])
        self.palette = dataset.metainfo.get('palette')
        infos = (dataset.get_data_info(i) for i in range(len(dataset)))
        self.paths = {info['img_id']: info['img_path'] for info in infos}

    def __call__(self, error: Any, is_miss: bool) -> str:
        """Return a picture as HTML.

        Args:
            error (DetectionError): A false positive or a miss.
            is_miss (bool): Which; a miss is drawn among all detections, a false positive among all
                objects.
        """
        one = error.annotation
        path = self.paths[one['image_id']]
        score = '' if is_miss else f' {one["score"]:.2f}'
        caption = f'{path}: {self.classes[self._label(one)]}{score}, {error.reason}'
        picture = self._picture(one, read_image(path, self.bit_depth), is_miss)
        shown = html_image(caption, 'image/jpeg', picture) if picture else 'outside its image'
        return f'<figure>{shown}<figcaption>{html.escape(caption)}</figcaption></figure>'

    def _picture(self, one: dict[str, Any], image: np.ndarray, is_miss: bool) -> bytes:
        """Return a JPEG; empty if nothing of the image is near the box."""
        left, top, right, bottom = around = window(one['bbox'], image.shape)
        if right <= left or bottom <= top:
            return b''
        truths = [one] if is_miss else self.run.cocoGt.imgToAnns[one['image_id']]
        found = [one]
        if is_miss:
            found = self.run.cocoDt.imgToAnns[one['image_id']]
            found = [other for other in found if other['score'] >= self.score_thr]
        drawn = {
            'ground truth': self._draw(image, around, self.run.cocoGt, truths),
            'prediction': self._draw(image, around, self.run.cocoDt, found),
        }
        return cv2.imencode('.jpg', side_by_side(drawn))[1].tobytes()

    def _label(self, annotation: dict[str, Any]) -> int:
        return self.classes.index(self.run.cocoGt.cats[annotation['category_id']]['name'])

    def _draw(
        self, image: np.ndarray, around: tuple[int, ...], coco: Any, shown: list[dict]
    ) -> np.ndarray:
        from .coco_metric import with_usable_mask

        left, top, right, bottom = around
        part = image[top:bottom, left:right]
        factor = SIDE / max(part.shape[:2])
        size = [max(1, round(side * factor)) for side in part.shape[1::-1]]
        how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
        part = cv2.resize(part, size, interpolation=how)
        known = set(self.run.params.catIds)
        shown = [
            one
            for one in shown
            if one['category_id'] in known
            and not one.get('iscrowd')
            and overlaps(one['bbox'], around)
        ]
        if not shown:
            return part
        boxes = np.array([one['bbox'] for one in shown], float)
        boxes[:, 2:] += boxes[:, :2]
        masks = None
        if self.run.params.iouType == 'segm':
            usable = (coco.annToMask(with_usable_mask(one)) for one in shown)
            whole = (mask[top:bottom, left:right] for mask in usable)
            masks = np.array([cv2.resize(m, size, interpolation=cv2.INTER_NEAREST) for m in whole])
        scores = [one['score'] for one in shown] if 'score' in shown[0] else None
        return Detections(
            (boxes - (left, top, left, top)) * factor,
            None if scores is None else np.array(scores),
            np.array([self._label(one) for one in shown]),
            None if masks is None else masks > 0,
            self.classes,
            self.palette,
        ).draw(part, score_thr=-1)


def window(box: Sequence[float], shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the part of an image that shows a box and what is around it: x1 y1 x2 y2.

    Args:
        box (Sequence[float]): x, y, width and height.
        shape (Sequence[int]): Height and width of the image.
    """
    x, y, width, height = box
    side = max(CONTEXT * max(width, height), MIN_CONTEXT)
    left, top = x + width / 2 - side / 2, y + height / 2 - side / 2
    ends = np.rint((left, top, left + side, top + side)).astype(int)
    limits = shape[1], shape[0], shape[1], shape[0]
    x1, y1, x2, y2 = np.clip(ends, 0, limits).tolist()
    return x1, y1, x2, y2


def overlaps(box: Sequence[float], around: Sequence[int]) -> bool:
    """Return whether a box (x, y, width, height) is partly in a part of an image."""
    x, y, width, height = box
    left, top, right, bottom = around
    return x < right and y < bottom and x + width > left and y + height > top


def plot_precision(
    precision: np.ndarray, iou_thrs: Sequence[float], names: Sequence[str]
) -> Figure:
    """Draw the precision over the recall: IoU thresholds on the left, classes on the right.

    Args:
        precision (np.ndarray): By IoU threshold, recall, class and area; -1 without objects.
        iou_thrs (Sequence[float]): The IoU thresholds.
        names (Sequence[str]): Names of the classes.
    """
    figure = Figure(figsize=(10, 4), layout='constrained')
    left, right = figure.subplots(1, 2, sharey=True)
    values = np.ma.masked_equal(precision[..., 0], -1)
    recall = np.linspace(0, 1, values.shape[1])
    for threshold, curves in zip(iou_thrs, values, strict=True):
        label = f'IoU {threshold:.2f}, AP {curves.mean():.3f}'
        left.plot(recall, curves.mean(1), label=label, color=f'{0.75 * threshold:.2f}')
    left.plot(recall, values.mean((0, 2)), label=f'mean, AP {values.mean():.3f}', linewidth=2.5)
    at = int(np.argmin(np.abs(np.array(iou_thrs) - IOU_THR)))
    for i, name in enumerate(names):
        curve, many = values[at, :, i], len(names) > NAMED_CURVES
        if not curve.mask.all():
            label = '_' if many else f'{_plain(name)}, AP {curve.mean():.3f}'  # '_' is not shown
            right.plot(recall, curve, label=label, linewidth=0.8 if many else 1.5)
    for axes, title in ((left, 'all classes'), (right, f'each class, IoU {iou_thrs[at]:.2f}')):
        axes.set(title=title, xlabel='recall', xlim=(0, 1), ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize='x-small', loc='best')
    left.set_ylabel('precision')
    return figure


def plot_confusion(matrix: np.ndarray, names: Sequence[str], unit: str) -> Figure:
    """Draw a confusion matrix; classes that occur nowhere are left out.

    Args:
        matrix (np.ndarray): Counts, ground truth in rows, prediction in columns.
        names (Sequence[str]): Names of rows and columns.
        unit (str): What is counted.
    """
    used = np.flatnonzero((matrix.sum(0) > 0) | (matrix.sum(1) > 0)).tolist()
    matrix = matrix[np.ix_(used, used)]
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = 2 + max(3.0, min(0.45 * len(used), 14.0))
    figure = Figure(figsize=(side + 1, side), layout='constrained')
    axes = figure.subplots()
    drawn = axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    figure.colorbar(drawn, label=f'share of the {unit} of a row', shrink=0.7)
    shown = [_plain(names[i]) for i in used]
    axes.set_xticks(range(len(used)), shown, rotation=60, ha='right')
    axes.set_yticks(range(len(used)), shown)
    axes.tick_params(labelsize='small' if len(used) <= NUMBERED_CLASSES else 'xx-small')
    axes.set(xlabel='prediction', ylabel='ground truth')
    if len(used) <= NUMBERED_CLASSES:
        for i, j in zip(*matrix.nonzero(), strict=True):
            text = f'{matrix[i, j]}' if unit == 'objects' else f'{shares[i, j]:.0%}'
            color = 'white' if shares[i, j] > 0.5 else 'black'
            axes.text(j, i, text, ha='center', va='center', fontsize='small', color=color)
    return figure


def _plain(name: str) -> str:
    return name.replace('$', r'\$')  # which starts a formula in matplotlib


def _drawing(alt: str, figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format='svg')
    content, width = buffer.getvalue(), 6 * figure.get_figwidth()
    image = html_image(alt, 'image/svg+xml', content)
    return f'<div class="curve" style="max-width: {width:.0f}rem">{image}</div>'
