"""Finds problems in a dataset before a run does."""
