"""Pages, contact sheets and figures from result rows and feature stores; nothing here trains or evaluates.

- ``gallery``, ``report``: a study's two pages; ``board``: rows of many studies
- ``figures``
- ``rows``: which result rows may be compared; ``comparison``: of two networks, image by image
- ``tables``: as Markdown, CSV and LaTeX
- ``pca``, ``foreground`` by it, ``colours`` (of feature stores), ``roughness`` (of PCA pictures)
- ``rasters`` (arrays to small pictures)
- ``pages`` (templates, content policy), ``palette``
"""
