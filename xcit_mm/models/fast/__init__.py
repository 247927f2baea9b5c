"""How the layers are run fast: the covariance form, chunks, strips, recomputation and layouts."""

from .execution import Execution, choose_execution
from .xca import FORMS

__all__ = ['FORMS', 'Execution', 'choose_execution']
