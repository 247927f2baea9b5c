"""Loads the part of a model that the pictures show, from a config, a checkpoint, or both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS

from ..compat import revert_sync_bn
from ..configs import bit_depth, nested_dicts, read_literals, resizing, type_name
from ..models import VARIANTS, XCiT, XCiTClassifier
from ..models.trunk import XCiTTrunk
from ..weights import read_checkpoint, read_weights, recognize, unwrap
from ..weights.formats import Recognized, structure
from ..weights.sanitize import sanitize_checkpoint
from .images import Normalize

TYPES = (XCiT.__name__, XCiTClassifier.__name__)


@dataclass
class Subject:
    """The network that the pictures show.

    Args:
        backbone (XCiTTrunk): An ``XCiT``, of a detector, a segmentor or alone, or an
            ``XCiTClassifier``, with its weights.
        preprocess (Normalize): How its images are normalized.
        trained_pyramid (bool): Whether the file had weights for all levels.
        resize (dict, optional): How its images are resized at test time; None if they are not, or
            if neither a config nor the checkpoint says so.
        bit_depth (int, optional): How many bits the values of 16-bit images have, if known.
    """

    backbone: XCiTTrunk
    preprocess: Normalize
    trained_pyramid: bool
    resize: dict[str, Any] | None = None
    bit_depth: int | None = None


def load_subject(checkpoint: str, cfg: Config | None = None, device: str = 'cpu') -> Subject:
    """Load the backbone or classifier of a checkpoint, without necks and heads.

    Args:
        checkpoint (str): A path, a web address, ``xcit://NAME`` or ``timm://NAME``.
        cfg (Config, optional): A config of a detector, segmentor, classifier or backbone. Defaults
            to None: the weights tell which of the paper's sizes it is.
        device (str): Where it runs. Defaults to ``cpu``.
    """
    weights, saved_config = _read(checkpoint)
    recognized = recognize(unwrap(weights))
    if recognized is None:
        raise ValueError(f'{checkpoint} contains no XCiT in a known format')
    backbone = _from_weights(recognized) if cfg is None else _from_config(cfg)
    backbone.load_state_dict(recognized.state)
    own = {name for name in backbone.state_dict() if name.startswith('pyramid.')}
    return Subject(
        backbone.to(device).eval(),
        Normalize() if cfg is None else _preprocessing(cfg),
        own <= recognized.state.keys(),
        resizing(saved_config if cfg is None else cfg),
        bit_depth(saved_config if cfg is None else cfg),
    )


def _read(checkpoint: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights, and the settings of the config that a run saved with them."""
    if '://' in checkpoint:
        return read_weights(checkpoint), {}
    path = Path(checkpoint).expanduser()
    content = read_checkpoint(path)
    meta = content.get('meta')
    text = meta.get('cfg') if isinstance(meta, dict) else None
    settings = read_literals(text) if isinstance(text, str) else {}
    return sanitize_checkpoint(content, path), settings


def _from_config(cfg: Config) -> XCiTTrunk:
    revert_sync_bn(cfg)
    for node in nested_dicts(cfg._cfg_dict):
        if type_name(node) in TYPES:
            return MODELS.build(node)
    raise ValueError(f'the config has no {" or ".join(TYPES)}, which the pictures need')


def _from_weights(recognized: Recognized) -> XCiTTrunk:
    sizes = structure(recognized.state)
    names = ('embed_dims', 'depth', 'num_heads')
    wanted = [sizes.get(name) for name in names]
    fitting = [a for a, v in VARIANTS.items() if [getattr(v, name) for name in names] == wanted]
    if not fitting:
        raise ValueError(f'these weights match none of the paper’s sizes ({sizes}): give a config')
    arch, patch_size, in_channels = fitting[0], sizes['patch_size'], sizes['in_channels']
    if 'cls_token' not in recognized.state:
        return XCiT(arch, patch_size, in_channels=in_channels)
    head = recognized.state.get('head.weight')
    num_classes = 0 if head is None else len(head)
    return XCiTClassifier(arch, patch_size, num_classes, in_channels=in_channels)


def _preprocessing(cfg: Config) -> Normalize:
    # In the model, or in mmpretrain next to it.
    for node in (*nested_dicts(cfg.get('model')), cfg):
        settings = node.get('data_preprocessor')
        if isinstance(settings, dict) and settings.get('mean') is not None:
            rgb = settings.get('bgr_to_rgb', settings.get('to_rgb', False))
            return Normalize(tuple(settings['mean']), tuple(settings['std']), bool(rgb))
    return Normalize()
