"""Warns if released weights meet images that are normalized in another way than they expect."""

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from mmengine.logging import MessageHub, print_log

from ..configs import nested_dicts, read_literals, type_name

# RGB, 0 to 255. All published weights were trained with these, in every format.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
# How far rounded values may be off.
TOLERANCE = 2.0


def warn_about_inputs(channels: int) -> None:
    """Warn if the config of the current run feeds other images than the released weights expect.

    A backbone does not know its detector. But every runner of mmengine notes its config before
    weights are loaded. Without a runner, nothing is known and nothing is said.

    Args:
        channels (int): Channels of the images. Only three of them have an order.
    """
    text = MessageHub.get_current_instance().get_info('cfg')
    fed = other_inputs(read_literals(text)) if isinstance(text, str) and channels == 3 else None
    if fed:
        print_log(
            'The released weights of XCiT expect RGB images, normalized with '
            f"mean={list(MEAN)} and std={list(STD)}. The config's data_preprocessor feeds {fed}. "
            'Results will be worse, without any error. In the config, set '
            f'model = dict(data_preprocessor=dict(mean={list(MEAN)}, std={list(STD)}, '
            'bgr_to_rgb=True)).',
            'current',
            WARNING,
        )


def other_inputs(cfg: Mapping[str, Any]) -> str | None:
    """Return what a config feeds to the network, if released weights surely expect another.

    Args:
        cfg (Mapping): A config. If images are read or normalized by unknown classes, or if they
            are scaled to 0...1 first, this is for its author to decide.
    """
    model = cfg.get('model')
    settings = model.get('data_preprocessor') if isinstance(model, dict) else None
    settings = settings or cfg.get('data_preprocessor')
    while isinstance(settings, dict) and isinstance(settings.get('data_preprocessor'), dict):
        settings = settings['data_preprocessor']  # of several branches
    kinds = set(map(type_name, nested_dicts(dict(cfg))))
    if not isinstance(settings, dict) or 'Normalize' in kinds or 'LoadImageFromFile' not in kinds:
        return None
    is_rgb = bool(settings.get('bgr_to_rgb', settings.get('to_rgb')))
    order = 'RGB' if is_rgb else 'BGR'
    mean, std = settings.get('mean'), settings.get('std')
    if mean is None or std is None:
        return f'{order} images that are not normalized'
    if is_rgb and any(_close(mean, MEAN, s) and _close(std, STD, s) for s in (1, 255)):
        return None
    return f'{order} images with mean={list(mean)} and std={list(std)}'


def _close(values: Any, expected: tuple[float, ...], scale: float) -> bool:
    return len(values) == 3 and all(
        abs(value * scale - other) < TOLERANCE
        for value, other in zip(values, expected, strict=True)
    )
