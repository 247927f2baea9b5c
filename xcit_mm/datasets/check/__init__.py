"""Finds problems in a dataset before a run does."""

from .problems import DataError, Problem
from .run import Report, find_problems

__all__ = ['DataError', 'Problem', 'Report', 'find_problems']
