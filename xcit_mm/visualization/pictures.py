"""All pictures by name, and which of them apply to a model."""

from collections.abc import Sequence

from .class_attention import ClassAttentionMaps
from .cross_covariance import CrossCovarianceMaps
from .load import Subject
from .magnitude import QueryKeyMagnitude
from .observe import Picture
from .pyramid import PyramidFeatures

PICTURES = ('magnitude', 'class_attention', 'covariance', 'pyramid')


def make_picture(
    name: str, subject: Subject, layers: Sequence[int] | None = None, per_head: bool = False
) -> Picture:
    """Make a picture, to observe one image; raise ValueError if it does not apply to the model.

    Args:
        name (str): One of :data:`PICTURES`.
        subject (Subject): The model.
        layers (Sequence[int], optional): Layers to draw, counted from 1. Defaults to None, all.
        per_head (bool): Whether the magnitude is drawn for each head. Defaults to False.
    """
    backbone = subject.backbone
    if name == 'magnitude':
        return QueryKeyMagnitude(backbone, layers, per_head)
    if name == 'class_attention':
        return ClassAttentionMaps(backbone)
    if name == 'covariance':
        return CrossCovarianceMaps(backbone, layers)
    if not subject.trained_pyramid:
        raise ValueError('the checkpoint has no weights for the pyramid')
    return PyramidFeatures(backbone)


def unavailable(subject: Subject) -> dict[str, str]:
    """Return the pictures that do not apply to a model, and why."""
    reasons = {}
    for name in PICTURES:
        try:
            make_picture(name, subject)
        except ValueError as error:
            reasons[name] = str(error)
    return reasons
