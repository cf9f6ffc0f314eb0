from .config import TokenCutConfig
from .cut import TokenCut, TokenCuts, to_pixels, tokencut
from .evaluation import evaluate

__all__ = ["TokenCut", "TokenCutConfig", "TokenCuts", "evaluate", "to_pixels", "tokencut"]
