"""Finds the share of the inputs that is this process's: by torchrun, Slurm, MPI or the user."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from ..launchers import VARIABLES, read_ranks
from .shards import EVERYTHING, Shard


class Process(NamedTuple):
    """This process among others.

    Args:
        shard (Shard): Its share of the inputs.
        local_rank (int): Its number on this machine, from 0; 0 if that is unknown.
    """

    shard: Shard
    local_rank: int


ALONE = Process(EVERYTHING, 0)


def this_process(given: Shard | None, environ: Mapping[str, str] = os.environ) -> Process:
    """Return the share that the user gave, else the one of the launcher, else everything.

    Args:
        given (Shard, optional): What the user gave.
        environ (Mapping[str, str]): The environment variables. Defaults to those of this process.
    """
    if given is not None:
        return Process(given, 0)
    for launcher in VARIABLES:
        if ranks := read_ranks(launcher, environ):
            return Process(Shard(*ranks[:2]), ranks[2])
    return ALONE


def device_of(local_rank: int, devices: int) -> str | None:
    """Return the CUDA device of one of several processes on a machine; None if there is no choice.

    Args:
        local_rank (int): The number of the process.
        devices (int): How many devices it sees. If Slurm shows each process its own, that is 1.
    """
    return f'cuda:{local_rank % devices}' if devices > 1 else None
