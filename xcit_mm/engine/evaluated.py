"""Evaluates a detector on the images of its data set, not on all that the annotation file lists."""

from typing import Any

from mmengine.runner.base_loop import BaseLoop

from ..errors import UserError


def evaluate_own_images(loop: BaseLoop, what: str) -> None:
    """Restrict COCO's evaluation to the images of a loop's data set.

    mmdet evaluates all images of the annotation file, so that the objects of those that a setting
    such as ``indices`` leaves out count as missed.

    Args:
        loop (BaseLoop): A loop for validation or tests, changed in place.
        what (str): ``val`` or ``test``, for the message.

    Raises:
        UserError: If the evaluator's annotation file lacks images of the data set.
    """
    dataset: Any = loop.dataloader.dataset
    for metric in loop.evaluator.metrics:
        coco = getattr(metric, '_coco_api', None)
        if coco is None or getattr(metric, 'img_ids', ()) is not None:
            continue
        infos = [dataset.get_data_info(index) for index in range(len(dataset))]
        if others := [info['img_path'] for info in infos if not _is_same(info, coco.imgs)]:
            raise UserError(
                f'{what}_evaluator.ann_file lacks {len(others)} of the {len(infos)} images of the '
                f'data set in {what}_dataloader, such as {others[0]}. Both must name the same '
                'annotation file.'
            )
        metric.img_ids = [info['img_id'] for info in infos]


def _is_same(info: dict[str, Any], images: dict[int, dict[str, Any]]) -> bool:
    """Whether an image of a data set has its id in the images of an annotation file."""
    image = images.get(info['img_id'])
    return image is not None and info['img_path'].endswith(image['file_name'])
