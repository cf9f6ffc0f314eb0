from .config import RetrievalConfig
from .evaluation import evaluate, retrieve
from .memory import Memory, choose_patches, patch_labels, remember

__all__ = ["Memory", "RetrievalConfig", "choose_patches", "evaluate", "patch_labels", "remember", "retrieve"]
