"""Pages, contact sheets and figures from result rows and feature stores; nothing here trains or evaluates.

- the gallery: ``gallery`` (the page), ``cells``, ``rasters`` (arrays to small pictures), ``pictures`` (their files),
  ``colours`` and ``pca``, ``similarity``, ``scores``, ``charts``; ``sheets`` are contact sheets
- the report: ``report`` (the page), ``sections`` (its parts), ``longtable`` (the page of every row)
- tables: ``tables`` (which rows may be compared), ``grids`` (as files), ``datatable`` (of anything), ``published`` and
  ``compare`` (the papers' tables, with ours in them), ``claims`` (what the study says of each claim)
- figures: ``figures``, ``diagnostics``, ``inside``, ``roughness`` (of PCA pictures); ``drawing`` is what they share
- all pages: ``pages`` (templates, content policy), ``palette``
"""
