"""An opt-in: mmengine reads every checkpoint of this process strictly.

Registering a loader is mmengine's public way to read a scheme. The loaders here replace its own for
files, web addresses and the model zoos. Nothing else in mmengine changes.
"""

import os
from collections import OrderedDict
from typing import Any

from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as zoo

from .sources import WEB_SCHEMES, UnknownWeightsError, load_from_file, load_from_web


def use_strict_reader() -> None:
    """Read checkpoints with :func:`.read_checkpoint` wherever mmengine reads one.

    This covers ``load_from``, ``resume``, ``init_cfg`` and the inferencers of mmdet and mmseg. All
    commands of this package call it; ``import xcit_mm`` does not. Calling it again changes nothing.
    ``s3://``, ``petrel://`` and ``pavi://`` are not covered.
    """
    loaders = {
        ('',): load_from_file,
        WEB_SCHEMES: load_from_web,
        ('torchvision://', 'modelzoo://'): load_from_torchvision,
        ('openmmlab://', 'open-mmlab://'): load_from_openmmlab,
        ('mmcls://',): load_from_mmcls,
    }
    for prefixes, loader in loaders.items():
        CheckpointLoader.register_scheme(prefixes, loader, force=True)


def load_from_torchvision(filename: str, map_location: Any = None) -> dict:
    """``torchvision://NAME``."""
    return load_from_web(_address(filename, zoo.get_torchvision_models()), map_location)


def load_from_openmmlab(filename: str, map_location: Any = None) -> dict:
    """``openmmlab://NAME``: a web address, or a file in mmengine's folder (``MMENGINE_HOME``)."""
    scheme, _, name = filename.partition('://')
    name = zoo.get_deprecated_model_names().get(name, name)
    address = _address(f'{scheme}://{name}', zoo.get_external_models())
    if address.startswith(WEB_SCHEMES):
        return load_from_web(address, map_location)
    return load_from_file(os.path.join(zoo._get_mmengine_home(), address), map_location)


def load_from_mmcls(filename: str, map_location: Any = None) -> dict:
    """``mmcls://NAME``: the backbone of a classifier."""
    content = load_from_web(_address(filename, zoo.get_mmcls_models()), map_location)
    prefix = 'backbone.'
    state = content.get('state_dict', content)
    backbone = {n[len(prefix) :]: t for n, t in state.items() if n.startswith(prefix)}
    return {'state_dict': OrderedDict(backbone)}


def _address(filename: str, known: dict[str, str]) -> str:
    name = filename.partition('://')[2]
    if name not in known:
        raise UnknownWeightsError(f'mmengine has no weights named {filename!r}')
    return known[name]
