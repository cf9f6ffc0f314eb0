"""Write docs/fidelity.md: ``python -m tests.conformance.fidelity_page [--slow]``.

Runs tests/conformance/test_papers_*.py, collects what every ``record`` says, and writes one line a check. Exit code 1
if any is not met; the page is written all the same. ``--slow`` runs the slow checks as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conformance.fidelity import PAPERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fidelity.md"
HEAD = """# Fidelity to the papers

Every claim of the four papers that can be checked without ImageNet, one line a check. This page is generated:
`python -m tests.conformance.fidelity_page --slow` runs `tests/conformance/test_papers_*.py` and writes what came out
(CPU, float64 unless said). {summary}

Where a paper contradicts itself or leaves something open, [diagnostics](diagnostics.md#what-the-papers-leave-open) says
what we did.
"""


def collect(slow: bool) -> tuple[list[dict[str, Any]], int]:
    """Lines of all checks, in the order of the tests, and pytest's exit code."""
    tests = sorted(str(path) for path in (ROOT / "tests" / "conformance").glob("test_papers_*.py"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        marks = ["-m", "not gpu"] if slow else []
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *marks, *tests]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "DINOSKIP_FIDELITY": str(path)}).returncode
        return [json.loads(line) for line in path.read_text().splitlines()], code


def number(value: Any) -> str:
    """At most five significant digits."""
    return value if isinstance(value, str) else f"{float(value):.5g}"


def expected(line: dict[str, Any]) -> str:
    """A bound, or a value and its tolerance."""
    if isinstance(line["expected"], str):
        return line["expected"].replace("..", " to ")
    return number(line["expected"]) + (f" ± {line['tolerance']:.2g}" if line["tolerance"] else "")


def page(lines: list[dict[str, Any]]) -> str:
    """The page's text: a table a paper."""
    met = sum(line["passed"] for line in lines)
    summary = f"{met} of {len(lines)} checks are met." if met < len(lines) else f"All {met} checks are met."
    parts = [HEAD.format(summary=summary)]
    for paper in PAPERS:
        rows = [line for line in lines if line["paper"] == paper]
        parts += [
            f"\n## {paper}\n",
            "| check | where | what we compute | expected | got | |",
            "|---|---|---|---|---|---|",
        ]
        for line in rows:
            found = re.search(r"::test_(\d+|trap_[iv]+)", line["test"])
            check = found[1].lstrip("0").replace("_", " ") if found else ""
            what = line["what"].replace("|", "\\|")
            mark = "met" if line["passed"] else "**not met**"
            parts.append(
                f"| {check} | {line['equation']} | {what} | {expected(line)} | {number(line['got'])} | {mark} |"
            )
    return "\n".join(parts) + "\n"


def main() -> int:
    """Run, write, and say how it went."""
    lines, code = collect("--slow" in sys.argv[1:])
    PAGE.write_text(page(lines), encoding="utf-8")
    bad = [line for line in lines if not line["passed"]]
    print(f"{PAGE}: {len(lines) - len(bad)} of {len(lines)} checks met")
    return 1 if bad or code else 0


if __name__ == "__main__":
    sys.exit(main())
