"""Tools for developing the project: ``python -m dev.NAME`` in a clone; not in the wheel."""
