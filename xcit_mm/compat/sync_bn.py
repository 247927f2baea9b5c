"""SyncBN in a config, on a machine without CUDA.

Obstacle: ``SyncBatchNorm`` synchronises over CUDA devices only, and raises in training when a
process group exists and its input is on the CPU.

What this does: makes it BN in the config, before anything is built from it, and logs that.
"""

import torch
from mmengine.config import Config
from mmengine.logging import print_log

from ..configs import nested_dicts

SYNC_NAMES = ('SyncBN', 'MMSyncBN', 'SyncBatchNorm')


def revert_sync_bn(cfg: Config) -> int:
    """Replace SyncBN by BN where no CUDA device takes part.

    Args:
        cfg (Config): The whole config, changed in place.

    Returns:
        int: How many layers' settings were changed.
    """
    if torch.cuda.is_available():
        return 0
    reverted = [node for node in nested_dicts(cfg._cfg_dict) if node.get('type') in SYNC_NAMES]
    for node in reverted:
        node['type'] = 'BN'
    if reverted:
        print_log(f'No CUDA: SyncBN became BN in {len(reverted)} places of the config', 'current')
    return len(reverted)
