"""Training: one file an objective (dino, supervised), the loop they share, its run directory and checkpoints."""

from dinoskip.training.dino import DinoConfig
from dinoskip.training.pretraining import PretrainJob, pretrain

__all__ = ["DinoConfig", "PretrainJob", "pretrain"]
