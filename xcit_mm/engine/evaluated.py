"""Sets up evaluation: which metrics, on which images, and how many detections they count."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from mmengine.runner.base_loop import BaseLoop

from ..configs import nested_dicts, type_name
from ..errors import UserError

# metric of mmdet or mmseg -> the module and the name of ours
OWN_METRICS = {
    'CocoMetric': ('.coco_metric', 'ConsistentCocoMetric'),
    'IoUMetric': ('.iou_per_class', 'PerClassIoUMetric'),
}
# Limits on the detections of an image, by their names in mmdet's models.
LIMITS = ('max_per_img', 'max_per_image')


def use_own_metrics(evaluator: Any) -> None:
    """Replace mmdet's and mmseg's metrics by ours, which keep the values of each class.

    Args:
        evaluator: An evaluator of a config, or a list of them, changed in place.
    """
    for node in nested_dicts(evaluator):
        if (name := type_name(node)) in OWN_METRICS:
            module, node['type'] = OWN_METRICS[name]
            import_module(module, __package__)


def restrict_eval_to_dataset(loop: BaseLoop, what: str) -> int:
    """Restrict COCO's evaluation to the images of a loop's dataset, and count all their objects.

    mmdet evaluates all images of the annotation file, so that the objects of those that a setting
    such as ``indices`` leaves out count as missed. COCO counts 100 detections, so that the objects
    of images that have more would count as missed, too.

    Args:
        loop (BaseLoop): A loop for validation or tests, changed in place.
        what (str): ``val`` or ``test``, for the message.

    Returns:
        int: The largest number of objects in an image; 0 if this is no evaluation of detections.

    Raises:
        UserError: If the evaluator's annotation file lacks images of the dataset.
    """
    dataset: Any = loop.dataloader.dataset
    # Those of panoptic segmentation have no img_ids before they compute.
    metrics = [
        m for m in loop.evaluator.metrics if hasattr(m, '_coco_api') and hasattr(m, 'img_ids')
    ]
    if not metrics:
        return 0
    infos = [dataset.get_data_info(index) for index in range(len(dataset))]
    most = max((_count_objects(info) for info in infos), default=0)
    for metric in metrics:
        if hasattr(metric, 'max_dets'):
            metric.max_dets = max(100, most)
        coco = metric._coco_api
        if coco is None or metric.img_ids is not None:
            continue
        if others := [info['img_path'] for info in infos if not _is_same(info, coco.imgs)]:
            raise UserError(
                f'{what}_evaluator.ann_file lacks {len(others)} of the {len(infos)} images of the '
                f'dataset in {what}_dataloader, such as {others[0]}. Both must name the same '
                'annotation file.'
            )
        metric.img_ids = [info['img_id'] for info in infos]
    return most


def find_low_limits(model: dict[str, Any], objects: int) -> list[str]:
    """Find settings that let a detector return fewer detections than an image has objects.

    Args:
        model (dict): The config of the model.
        objects (int): The largest number of objects in an image.

    Returns:
        list[str]: Each as the option that raises it, such as
        ``model.test_cfg.rcnn.max_per_img=150``.
    """
    settings = model.get('module', model).get('test_cfg')  # a module is in a wrapper for TTA
    limits = _limits(settings, 'model.test_cfg')
    return [f'{name}={objects}' for name, limit in limits if 0 < limit < objects]


def _limits(node: Any, path: str) -> Iterator[tuple[str, int]]:
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in LIMITS and isinstance(value, int):
            yield f'{path}.{key}', value
        yield from _limits(value, f'{path}.{key}')


def _count_objects(info: dict[str, Any]) -> int:
    return sum(not one.get('ignore_flag') for one in info.get('instances', ()))


def _is_same(info: dict[str, Any], images: dict[int, dict[str, Any]]) -> bool:
    """Return whether an image of a dataset has its id in the images of an annotation file."""
    image = images.get(info['img_id'])
    return image is not None and info['img_path'].endswith(image['file_name'])
