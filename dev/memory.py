"""Memory of a process, as Linux reports it."""

from pathlib import Path


def status(field: str, pid: int | str = 'self') -> float:
    """A line of a process's status in MB: ``VmRSS`` is its memory, ``VmHWM`` its peak.

    Args:
        field (str): Name of the line.
        pid (int or str): The process. Defaults to this one.
    """
    for line in Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith(f'{field}:'):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def reset_peak(pid: int | str = 'self') -> None:
    """Let ``VmHWM`` count from now on."""
    Path(f'/proc/{pid}/clear_refs').write_text('5')
