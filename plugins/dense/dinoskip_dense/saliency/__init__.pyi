from .config import SaliencyConfig
from .evaluation import evaluate
from .scores import MaskCounts, count_masks, f_curve, f_score
from .solver import BilateralGrid, solve

__all__ = ["BilateralGrid", "MaskCounts", "SaliencyConfig", "count_masks", "evaluate", "f_curve", "f_score", "solve"]
