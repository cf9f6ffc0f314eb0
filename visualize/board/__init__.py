"""A board: result rows of any number of studies and machines on one page, ranked where they may be compared.

- ``sources``: which rows there are, of which study, with their records and gallery
- ``ranking``: tables of what may be compared, differences, and what may not and why
- ``page``: the page and its CSV files
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
