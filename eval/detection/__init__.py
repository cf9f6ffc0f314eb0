"""Detection: Mask R-CNN on a simple feature pyramid over a frozen network, or one that is fine-tuned (docs/heads.md).

Names are loaded when they are first used, so that the settings alone cost no import of torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
