from .config import ObjectsConfig
from .evaluation import evaluate
from .masks import MaskCutRound, cut_masks, maskcut
from .scores import MatchedBoxes, match_boxes

__all__ = ["MaskCutRound", "MatchedBoxes", "ObjectsConfig", "cut_masks", "evaluate", "maskcut", "match_boxes"]
