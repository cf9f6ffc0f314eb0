"""The papers beside a study.

``published`` tables, ours in them by ``compare``, the paper's ``claims``, its own numbers ``as_study``; tables of the
``others``.
"""
