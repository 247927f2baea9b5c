"""The environment variables in which launchers tell a process its place among others."""

import os
from collections.abc import Mapping

from .errors import UserError

# launcher -> the variables it sets: rank, number of processes, rank on this machine. Slurm sets
# SLURM_NTASKS, too, but also in a batch script that is itself only one process.
VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'),
    'slurm': ('SLURM_PROCID', 'SLURM_STEP_NUM_TASKS', 'SLURM_LOCALID'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'),
}


def read_ranks(
    launcher: str, environ: Mapping[str, str] = os.environ
) -> tuple[int, int, int] | None:
    """Return rank, number of processes and local rank; None if the launcher did not start this.

    Args:
        launcher (str): One of :data:`VARIABLES`.
        environ (Mapping[str, str]): The environment variables. Defaults to those of this process.

    Raises:
        UserError: If the variables are not numbers.
    """
    rank, count, local_rank = VARIABLES[launcher]
    if rank not in environ or count not in environ:
        return None
    values = environ[rank], environ[count], environ.get(local_rank, '0')
    if not all(map(str.isdecimal, values)) or int(values[0]) >= int(values[1]):
        raise UserError(
            f'The environment variables {rank}={values[0]} and {count}={values[1]} must be '
            'numbers, the first one below the second one. They say which of the processes this '
            'is; unset them for one process.'
        )
    return int(values[0]), int(values[1]), int(values[2])
