"""Evaluation of frozen features. Write ``from eval.probe import ...``.

A folder for each task: its record in ``task.py``, its settings in ``config.py`` (both import no torch, for a package's
names are loaded when they are first used), its run in ``evaluation.py``.

- linear segmentation probes: ``probe``
- object discovery: ``tokencut``; ``discovery`` has the scores
- linear heads: ``heads`` (their fit), ``frozen`` (their features), ``stacked`` (all at once), ``schedules``
- neighbours: ``knn`` (images), ``retrieval`` (patches), ``neighbours`` (the index)
- while a network trains: ``online``
- for all of them: ``protocols`` (settings by their name), ``labelled`` (tokens with label maps), ``upsampling``,
  ``metrics``, ``object_scores`` (AP and AR of boxes and masks),
  ``coco_results`` (for pycocotools), ``rows`` (with intervals and records), ``baselines``,
  ``pixels`` (features without a network), ``prefetch`` (files read ahead by threads), ``compare`` (two rows over the
  same images), ``picture_maps`` (what the gallery draws), ``places`` (blocks and facets of one pass), ``resumed`` (what
  is found image by image, in files), ``joined`` (rows of levels that have grids of their own),
  ``published`` (numbers that authors print of their networks)

Further tasks are plug-ins (docs/plugins).
"""
