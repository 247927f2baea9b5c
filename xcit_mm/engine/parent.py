"""Lets a process end with the one that started it, however that ends."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # of Linux's sys/prctl.h


def die_with_parent() -> None:
    """Let Linux kill this process when its parent ends; on other systems, do nothing."""
    if sys.platform != 'linux':
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it ended before that
        os._exit(1)


def init_worker(init: Callable[[int], None] | None, number: int) -> None:
    """Start a worker of a data loader; ``worker_init_fn`` with its first argument given.

    A worker notices by itself that a run was killed, but only while it waits for work. Otherwise,
    it stays, with its memory.

    Args:
        init (callable, optional): The loader's own ``worker_init_fn``.
        number (int): The number of the worker.
    """
    die_with_parent()
    if init is not None:
        init(number)
