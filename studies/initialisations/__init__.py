"""A search for initialisations with which skipless ViTs train and keep their tokens apart.

``python -m studies.initialisations --data IMAGENETTE --out DIR [--table FILE.md]``: a run for every initialisation,
optimizer, learning rate and seed of the plan (:mod:`studies.initialisations.plan`), the most telling first, by the
protocol of :mod:`studies.initialisations.protocol`. A run is one JSON file in DIR; those that are there are not run
again, so that it may be stopped at any time. ``--table`` writes what is there as a page with curves, and runs nothing.
"""
