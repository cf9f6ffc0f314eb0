"""Training: one file an objective (dino, supervised), the loop they share, its run directory and checkpoints.

Names are loaded when they are first used, so that settings alone cost no import of torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
