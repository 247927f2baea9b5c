"""Turns a checkpoint into one file that runs without this package, and checks that file."""
