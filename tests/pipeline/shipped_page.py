"""Time and filled results of each shipped configuration's shrunk run, as the table of docs/configurations.md.

    pytest -q -m slow tests/pipeline/test_shipped.py | python -m tests.pipeline.shipped_page

It reads the lines that :mod:`tests.pipeline.test_shipped` prints, and fails if there are none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

RUN = re.compile(r"^(?P<name>\S+)\.yaml: (?P<wall>\d+) s \((?P<core>\d+) of a core\); (?P<filled>.+)$", re.MULTILINE)
HEADER = "| configuration | s | s of a core | what its run filled |\n|---|---:|---:|---|"


def table(lines: Iterable[str]) -> str:
    """The Markdown table of the runs that are among the lines, by name; a later run takes an earlier one's place.

    Raises :class:`ValueError` without one.
    """
    runs = {found["name"]: found for line in lines if (found := RUN.search(line))}
    if not runs:
        raise ValueError("no line of a run, such as 'quick.yaml: 60 s (20 of a core); blocks 9'")
    body = [
        f"| [{name}](../configs/{name}.yaml) | {runs[name]['wall']} | {runs[name]['core']} | {runs[name]['filled']} |"
        for name in sorted(runs)
    ]
    return "\n".join([HEADER, *body])


if __name__ == "__main__":
    print(table(sys.stdin))
