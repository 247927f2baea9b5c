"""Finds problems in a data set before a run does."""

from .problems import DataError, Problem
from .run import Report, find_problems

__all__ = ['DataError', 'Problem', 'Report', 'find_problems']
