"""Names of the networks on the pages of a study, in a file beside the page for others to read."""

from __future__ import annotations

from pathlib import Path

from dinoskip.io.files import read_json

NAMES = "names.json"
"""In a report's folder: words by the names that files and rows have."""


def words_of_report(report: Path) -> dict[str, str]:
    """Words by the name in files, of a report's folder; nothing without a report, or of one of an earlier version."""
    file = report / NAMES
    return {str(name): str(words) for name, words in read_json(file).items()} if file.is_file() else {}
