"""What we run on the project itself, as ``python -m dev.NAME`` in a clone; not in the wheel."""
