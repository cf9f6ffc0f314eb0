"""DINO pretraining: the recipe, the loop, checkpoints."""

from dinoskip.training.dino import PretrainConfig
from dinoskip.training.pretraining import PretrainJob, pretrain

__all__ = ["PretrainConfig", "PretrainJob", "pretrain"]
