"""The papers beside a study.

``published`` tables, ours in them by ``compare``, the paper's ``claims`` by ``rules``, its own numbers ``as_study``;
tables of the ``others``.
"""
