"""A study rehearsed: shrunk in size and steps alone, on composed data in the real sets' layouts, to its last page.

:mod:`.shrink` makes the settings small, :mod:`.layouts` composes the data, :mod:`.filled` says what the run filled and
what a full run would leave empty.
"""
