"""Runs the layers fast: the covariance form, chunks, strips, recomputation and layouts."""

from .execution import Execution, anatomy, choose_execution
from .recompute import recomputed
from .xca import FORMS

__all__ = ['FORMS', 'Execution', 'anatomy', 'choose_execution', 'recomputed']
