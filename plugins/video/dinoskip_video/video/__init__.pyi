from .config import VideoConfig
from .evaluation import evaluate
from .propagation import PropagationRule, VideoMemory, at_size, first_masks, hard_labels, propagate, unit_tokens
from .scores import ObjectScores, boundary, frame_scores, object_scores

__all__ = [
    "ObjectScores",
    "PropagationRule",
    "VideoConfig",
    "VideoMemory",
    "at_size",
    "boundary",
    "evaluate",
    "first_masks",
    "frame_scores",
    "hard_labels",
    "object_scores",
    "propagate",
    "unit_tokens",
]
