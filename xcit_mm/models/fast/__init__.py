"""Runs the layers fast: the covariance form, chunks, strips, recomputation and layouts.

Other packages use what is here and import none of the modules below.
"""

from .chunks import token_chunks
from .covariance import (
    StatisticsSum,
    attention_from_statistics,
    linear_map,
    query_key_norms,
    shift_origin,
    statistics,
)
from .execution import Execution, choose_execution, fingerprint, is_changed
from .feed_forward import feed_forward_residual
from .layout import map_to_tokens, tokens_to_map
from .lpi import HALO
from .operators import BatchNorm, assume, check_compiler, is_batch_norm, is_compiled_by_user
from .pyramid import rescale_over_strips
from .recompute import recomputed
from .residual import add_branch, path_scales, split_layer_scale
from .rows import run_rows
from .stem import StemRows, add_positions, has_fixed_statistics
from .xca import FORMS, covariance_xca

__all__ = [
    'FORMS',
    'HALO',
    'BatchNorm',
    'Execution',
    'StatisticsSum',
    'StemRows',
    'add_branch',
    'add_positions',
    'assume',
    'attention_from_statistics',
    'check_compiler',
    'choose_execution',
    'covariance_xca',
    'feed_forward_residual',
    'fingerprint',
    'has_fixed_statistics',
    'is_batch_norm',
    'is_changed',
    'is_compiled_by_user',
    'linear_map',
    'map_to_tokens',
    'path_scales',
    'query_key_norms',
    'recomputed',
    'rescale_over_strips',
    'run_rows',
    'shift_origin',
    'split_layer_scale',
    'statistics',
    'token_chunks',
    'tokens_to_map',
]
