"""Evaluation of frozen features. Write ``from eval.probe import ...``.

- linear probes: ``probe`` (fit, choose, score), ``probe_rows`` (what is written); ``stacked`` and ``descent`` train all
  heads at once, ``targets`` is their loss, ``heads`` predicts at label size and has the file; features come from disk
  (``labelled``, ``feeds``) or from images as they are needed (``live``, ``crops``, ``windows``)
- object discovery: ``discovery`` (a data set), ``cutting`` (all its images and blocks), ``tokencut`` and ``lost`` (one
  image); ``graph``, ``lanczos`` and ``symmetric`` find the eigenvector, ``overlays`` draws
- neighbours: ``knn`` (images), ``retrieval`` (patches), ``neighbours`` (the index)
- while a network trains: ``online``
- for all of them: ``metrics``, ``bootstrap`` (intervals), ``baselines``
"""
