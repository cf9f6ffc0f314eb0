"""Measurements on a machine with one GPU that take minutes, the most valuable first, with a line of JSON for each.

``python -m benchmarks.gpu [PART ...]`` runs the parts of :data:`benchmarks.gpu.driver.PARTS`, each in a process of its
own with a time limit of its own, all within ``--seconds``. A result is appended to ``results.jsonl`` as soon as it is
known, so that a part that is ended at its limit keeps what it has measured; ``summary.txt`` has all of them,
``log.txt`` what the parts printed. ``--tiny`` runs the same code at sizes that a CPU takes seconds for.
``python -m benchmarks.gpu page`` writes the section *GPU* of docs/measured.md from the committed lines
(docs/results/gpu).
"""
