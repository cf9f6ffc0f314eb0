from .config import CorrespondenceConfig
from .evaluation import Pck, evaluate, pck
from .matching import Matched, Matcher, Placement, padded_size, sampled, upsampled_lengths

__all__ = [
    "CorrespondenceConfig",
    "Matched",
    "Matcher",
    "Pck",
    "Placement",
    "evaluate",
    "padded_size",
    "pck",
    "sampled",
    "upsampled_lengths",
]
