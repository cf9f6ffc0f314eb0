"""Figures for pages and papers; the same colour for a variant in all of them.

- ``results`` (against block, epoch, depth), ``training`` (loss and what was measured meanwhile), ``networks`` and
  ``activations`` (what is inside)
- ``grid``, images × networks and blocks for papers
- ``cuts``, one photograph under many cuts; ``curves``, any quantity against block or step
- ``drawing``, what all of them share
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
