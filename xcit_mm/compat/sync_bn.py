"""SyncBN in a config, on a machine without CUDA.

Obstacle: ``SyncBatchNorm`` synchronises only CUDA devices. On the CPU it raises in training if a
process group exists.

What this does: changes it to BN in the config, before anything is built, and logs that.
"""

from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import print_log

SYNC_NAMES = ('SyncBN', 'MMSyncBN', 'SyncBatchNorm')


def revert_sync_bn(cfg: Config) -> int:
    """Replace SyncBN with BN if there is no CUDA device.

    Args:
        cfg (Config): The whole config, changed in place.

    Returns:
        int: The number of changed places.
    """
    if torch.cuda.is_available():
        return 0
    changed = _revert(cfg._cfg_dict)
    if changed:
        print_log(f'No CUDA: SyncBN became BN in {changed} places of the config', 'current')
    return changed


def _revert(node: Any) -> int:
    if isinstance(node, dict):
        here = node.get('type') in SYNC_NAMES
        if here:
            node['type'] = 'BN'
        return here + sum(_revert(value) for value in node.values())
    if isinstance(node, (list, tuple)):
        return sum(_revert(value) for value in node)
    return 0
