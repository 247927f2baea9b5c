"""The scope ``xcit_mm`` in mmengine's registries.

Our classes are registered in mmengine's own registries, where every project finds them. These child
registries are empty. mmengine asks for them by the name of this module when it builds from a config
that has ``_base_ = 'xcit_mm::...'``; without them it would warn that the package is not installed.
"""

from mmengine import registry
from mmengine.registry import Registry

CHILDREN = [
    Registry(parent.name, parent=parent, scope='xcit_mm', locations=['xcit_mm'])
    for parent in vars(registry).values()
    if isinstance(parent, Registry)
]
