"""Detection: Mask R-CNN on a simple feature pyramid over a network, frozen or fine-tuned (docs/heads.md)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
