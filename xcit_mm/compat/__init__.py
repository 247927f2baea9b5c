"""What the OpenMMLab stack needs to run on today's PyTorch: one module per obstacle.

Each module acts only where its obstacle exists, and can be applied any number of times.

``import xcit_mm`` applies five. They affect the whole process, because nothing less works:

- :mod:`.checkpoints` adds names to torch's allow-list for weights-only loading;
- :mod:`.mmcv_ops` provides mmcv's operators where mmcv came without them;
- :mod:`.config_prefix` adds a line to mmengine's table of packages;
- :mod:`.pkg_resources_warning` filters one warning;
- :mod:`.torchvision_ops` declares two operators that torchvision expects.

The commands use the others when a run needs them: :mod:`.gloo`, :mod:`.sync_bn`,
:mod:`.fused_optimizer` and :mod:`.ragged_recalls`.
"""

from . import checkpoints, config_prefix, mmcv_ops, pkg_resources_warning, torchvision_ops
from .fused_optimizer import revert_fused
from .gloo import init_gloo
from .sync_bn import revert_sync_bn

__all__ = ['apply_early', 'init_gloo', 'revert_fused', 'revert_sync_bn']


def apply_early() -> None:
    """Apply what must be in place before anything imports ``mmcv.ops`` or reads a config."""
    pkg_resources_warning.apply()
    torchvision_ops.apply()
    mmcv_ops.apply()
    checkpoints.apply()
    config_prefix.apply()
