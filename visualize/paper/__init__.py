"""The paper beside a study.

``published`` tables, ours in them by ``compare``, the paper's ``claims``, and its own numbers ``as_study``.
"""
