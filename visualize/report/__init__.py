"""The report: one page of what was run and what came out.

- ``config``; ``content``, what it is built from; ``page``, which writes it, by ``sections``
- ``markdown``: the same to commit; ``rows_page``: every row
- ``first_sentence``: values and baselines, ``answer``: which network is better,
  ``separation``: by which metrics, ``overview``: in a grid,
  ``cautions``: what to know before, ``answer_table``: all of it
- ``names``: what pages call networks, in a file
- ``tables`` of the study's own rows, ``diagnostics`` of untrained networks
- ``papers``: records of papers, beside whose printed tables a study's numbers can be put
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
