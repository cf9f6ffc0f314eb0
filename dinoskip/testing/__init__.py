"""Checks for parts of other packages: does what is declared have all that the pipeline reads?

``python -m dinoskip.testing`` checks every plug-in that is installed, or named with ``--plugin FILE``, and prints a
line a part; exit code 1 if one does not hold. In a test of yours::

    from dinoskip.testing import problems_of
    assert problems_of("tasks", "smoothness") == []

``examples`` has a part of every kind (docs/extending.md), ``study`` runs a study that uses them all and looks for their
numbers on its pages.
"""

from dinoskip.testing.parts import CHECKS, problems_of

__all__ = ["CHECKS", "problems_of"]
