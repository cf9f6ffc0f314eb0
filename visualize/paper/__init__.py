"""The papers beside a study.

``published`` tables, ours in them by ``compare``, the paper's ``claims`` by ``rules``; tables of the ``others``, ours
in them as ``labelled``. Both have the same ``cells`` and ``layout``. ``readings`` are sentences
of the papers that can be read in several ways.
"""
