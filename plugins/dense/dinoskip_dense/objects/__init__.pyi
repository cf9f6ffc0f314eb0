from .config import ObjectsConfig
from .evaluation import evaluate
from .masks import MaskCutRound, cut_masks, maskcut

__all__ = ["MaskCutRound", "ObjectsConfig", "cut_masks", "evaluate", "maskcut"]
