from .config import TokenCutConfig
from .cut import TokenCut, TokenCuts, to_pixels, tokencut
from .evaluation import evaluate
from .floor import make_floor

__all__ = ["TokenCut", "TokenCutConfig", "TokenCuts", "evaluate", "make_floor", "to_pixels", "tokencut"]
