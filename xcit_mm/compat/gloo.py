"""Several processes on a machine without CUDA.

Obstacle: mmengine's launchers call ``torch.cuda.set_device`` and start NCCL on any machine, and its
``Runner`` gives the model's wrapper the number of a CUDA device.

What this does: starts the process group itself, with gloo and the same environment variables, and
sets the same wrapper without a device in the config. mmengine uses a process group that exists.
"""

import datetime
import os
import subprocess

import torch
from mmengine.config import Config
from torch import distributed

from ..launchers import VARIABLES, read_ranks

# Seconds after which a process stops waiting for a lost one. The config can set another value in
# env_cfg.dist_cfg.timeout.
TIMEOUT = 1800


def init_gloo(cfg: Config) -> None:
    """Start a gloo process group where there is no CUDA; call it before the Runner is built.

    Args:
        cfg (Config): The config of a run. ``launcher`` says what started the processes;
            ``model_wrapper_cfg`` is added if it is missing.
    """
    launcher = cfg.launcher
    if launcher == 'none' or torch.cuda.is_available() or distributed.is_initialized():
        return
    if launcher not in VARIABLES:
        raise ValueError(f'launcher must be none, {", ".join(VARIABLES)}, not {launcher!r}')
    ranks = read_ranks(launcher)
    if ranks is None:
        raise ValueError(
            f'--launcher {launcher} needs the environment variables '
            f'{" and ".join(VARIABLES[launcher][:2])}, which that launcher sets. Start the tool '
            'with tools/dist_train.sh (pytorch), srun (slurm) or mpirun (mpi).'
        )
    for name, number in zip(VARIABLES['pytorch'], ranks, strict=True):
        os.environ[name] = str(number)
    if launcher == 'slurm':
        os.environ.setdefault('MASTER_ADDR', _first_slurm_host(os.environ['SLURM_NODELIST']))
    os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29500')
    timeout = cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout', TIMEOUT)
    distributed.init_process_group('gloo', timeout=datetime.timedelta(seconds=timeout))
    if cfg.get('model_wrapper_cfg') is None:
        cfg.model_wrapper_cfg = dict(
            type='MMDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )


def _first_slurm_host(nodes: str) -> str:
    command = ['scontrol', 'show', 'hostname', nodes]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
