"""The papers beside a study: ``published`` tables, ours in them by ``compare``, and the paper's ``claims``."""
