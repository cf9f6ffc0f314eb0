"""Saliency: the object of an image as a mask, by TokenCut, scored as the public script does (docs/parts.md)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
