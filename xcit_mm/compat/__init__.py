"""What today's PyTorch needs from the OpenMMLab stack: one module an obstacle, with its reason.

Each does something only where its obstacle exists, is silent otherwise, and can be applied any
number of times. :func:`apply_early` is called by ``import xcit_mm``; :mod:`.gloo`,
:mod:`.sync_bn` and :mod:`.ragged_recalls` are called by the tools, which know what a run needs.
"""

from . import checkpoints, config_prefix, pkg_resources_warning, torchvision_ops
from .gloo import init_gloo
from .sync_bn import revert_sync_bn

__all__ = ['apply_early', 'init_gloo', 'revert_sync_bn']


def apply_early() -> None:
    """Apply what must be in place before a config is read or a Runner is built."""
    pkg_resources_warning.apply()
    torchvision_ops.apply()
    checkpoints.apply()
    config_prefix.apply()
