"""The gallery: a static page of models x blocks x images, and contact sheets.

- ``config``; ``content``, what it is built from; ``page``, which writes it
- ``layers``, a file each, of which ``cells`` (one image by one model) are made; their ``files`` and ``scores``;
  ``charts`` above them; ``similarity`` to a clicked patch; ``sheets`` are contact sheets;
  ``written`` reads a page again
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
