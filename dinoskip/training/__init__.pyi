from .dino_config import DinoConfig
from .objectives import PretrainJob
from .pretraining import pretrain

__all__ = ["DinoConfig", "PretrainJob", "pretrain"]
