"""Times that a study took over those it was told, of a study that ran: the first of a kind has no estimate."""

from __future__ import annotations

from pathlib import Path

from benchmarks.estimates import HEADER, ratios
from dinoskip.cli import main
from tests.helpers.study import TINY


def test_ratios_of_a_study_that_ran(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TINY)
    settings = [f"output={tmp_path / 'out'}", "evaluate.epochs=[0]"]
    assert main(["run", str(tmp_path / "s.yaml"), *settings, "--until", "features", "-q"]) == 0
    rows = {str(row[0]): dict(zip(HEADER, row, strict=True)) for row in ratios(str(tmp_path / "s.yaml"), settings)}
    assert (rows["weights"]["count"], rows["weights"]["first of a kind"]) == (2, 1)
    assert rows["data"]["first of a kind"] == rows["data"]["count"] == 1
    uses = {"classes", "segmentation"}  # those of detection are streamed
    assert rows["features"]["first of a kind"] == len(uses)
    told = [row for row in rows.values() if row["estimated"]]
    for row in told:
        assert float(str(row["with an estimate"])) <= float(str(row["seconds"]))
    assert rows["all"]["count"] == sum(int(str(row["count"])) for name, row in rows.items() if name != "all")
