from .classify import knn_predictions
from .config import KnnConfig
from .evaluation import evaluate

__all__ = ["KnnConfig", "evaluate", "knn_predictions"]
