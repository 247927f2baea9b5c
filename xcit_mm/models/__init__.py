"""The network, one idea per file, each readable next to the paper."""

from .ablations import AblatedXCiT, AblatedXCiTClassifier
from .classifier import XCiTClassifier
from .variants import VARIANTS
from .xcit import XCiT

__all__ = ['VARIANTS', 'AblatedXCiT', 'AblatedXCiTClassifier', 'XCiT', 'XCiTClassifier']
