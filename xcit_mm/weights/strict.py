"""An opt-in: mmengine reads every checkpoint of this process strictly.

Registering a loader is mmengine's public way to read a scheme. The loaders here replace its own for
files, web addresses and the model zoos. Nothing else in mmengine changes.
"""

import os
from typing import Any

from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as zoo

from .sources import WEB_SCHEMES, UnknownWeightsError, load_from_file, load_from_web

# Names that mmengine knows, by scheme.
ZOOS = {
    'torchvision': 'get_torchvision_models',
    'modelzoo': 'get_torchvision_models',
    'openmmlab': 'get_external_models',
    'open-mmlab': 'get_external_models',
    'mmcls': 'get_mmcls_models',
}


def use_strict_reader() -> None:
    """Read checkpoints with :func:`.read_checkpoint` wherever mmengine reads one.

    This covers ``load_from``, ``resume``, ``init_cfg`` and the inferencers of mmdet and mmseg. All
    commands of this package call it; ``import xcit_mm`` does not. Calling it again changes nothing.
    ``s3://``, ``petrel://`` and ``pavi://`` are not covered.
    """
    CheckpointLoader.register_scheme('', load_from_file, force=True)
    CheckpointLoader.register_scheme(WEB_SCHEMES, load_from_web, force=True)
    CheckpointLoader.register_scheme([f'{scheme}://' for scheme in ZOOS], load_from_zoo, force=True)


def load_from_zoo(filename: str, map_location: Any = None) -> dict:
    """Read a name of one of mmengine's model zoos, such as ``torchvision://NAME``."""
    scheme, _, name = filename.partition('://')
    known = getattr(zoo, ZOOS[scheme])()
    if name not in known:
        name = zoo.get_deprecated_model_names().get(name, name)
    if name not in known:
        raise UnknownWeightsError(f'mmengine has no weights named {filename!r}')
    address = known[name]
    if not address.startswith(WEB_SCHEMES):
        return load_from_file(os.path.join(zoo._get_mmengine_home(), address), map_location)
    content = load_from_web(address, map_location)
    if scheme != 'mmcls':
        return content
    # Files of classifiers, of which models take the backbone.
    prefix = 'backbone.'
    state = content.get('state_dict', content)
    return {'state_dict': {n[len(prefix) :]: t for n, t in state.items() if n.startswith(prefix)}}
