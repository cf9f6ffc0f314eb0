from .config import DetectionConfig
from .evaluation import evaluate

__all__ = ["DetectionConfig", "evaluate"]
