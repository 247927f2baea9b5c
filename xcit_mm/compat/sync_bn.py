"""SyncBN in a config, on a machine without CUDA.

Obstacle: ``SyncBatchNorm`` synchronizes only CUDA devices. On the CPU it raises in training if a
process group exists.

What this does: changes it to BN in the config, before anything is built, and logs that.
"""

import torch
from mmengine.config import Config
from mmengine.logging import print_log

from ..configs import nested_dicts

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
    reverted = [node for node in nested_dicts(cfg._cfg_dict) if node.get('type') in SYNC_NAMES]
    for node in reverted:
        node['type'] = 'BN'
    if reverted:
        print_log(
            f'No CUDA: replaced SyncBN with BN in {len(reverted)} places in the config', 'current'
        )
    return len(reverted)
