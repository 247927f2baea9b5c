"""What the commands in ``tools/`` do."""
