"""Limits for a process, so that tests behave the same on any machine."""

import contextlib
import resource
from pathlib import Path


@contextlib.contextmanager
def limited_memory(spare):
    """Let this process allocate at most so many bytes on top of what it has."""
    taken = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
