"""Networks that would stand in the same cell of a published table are named before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.pipeline.report.places import contested
from dinoskip.pipeline.study import load_study
from tests.helpers.study import SUPERVISED, SVG

PROBED = """
name: probed
data: {voc: {kind: voc, root: VOC, year: 2012}, scenes: {kind: scenes}}
model: {name: vit_tiny_patch16, depth: 2, img_size: 32}
pretrain: {dataset: scenes, epochs: 3, warmup_epochs: 1, keep_epochs: [2]}
evaluate: {multiscale: [1, 2], probe: {datasets: [voc], size: 32}}
report: {compare: [paper.table2, paper.table3]}
"""
TWO = "variants.model=[{skip: true, label: a}, {skip: true, label: b, img_size: 48}]"
BY_DEPTH = "variants.model=[{skip: true, label: a}, {skip: true, label: b, depth: 1}]"


@pytest.mark.parametrize(
    ("source", "overrides", "networks"),
    [
        (SUPERVISED, ["variants.model=[{label: a}, {label: b, depth: 2}]"], []),  # the deepest stands in table 1
        (SUPERVISED, [TWO], ["a-adamw and b-adamw"]),
        (SUPERVISED, [TWO, "variants.seeds=[0, 1]"], ["a-adamw and b-adamw"]),
        (SUPERVISED, ["variants.seeds=[0, 1, 2]"], []),
        (SUPERVISED, [TWO, "report.compare=[]"], []),
        (SUPERVISED, [TWO, "report.compare=graying.table4"], []),
        (
            SUPERVISED,
            ["variants.model=[{label: small}]", "variants.optimizer=[adamw, soap]", "report.compare=graying.table4"],
            ["small-adamw and small-soap"],
        ),
        (
            SUPERVISED,
            [
                "variants.model=[{label: small}, {label: small, backbone: 'timm:vit_tiny_patch16_224'}]",
                "report.compare=graying.table4",
            ],
            ["small-adamw and small"],
        ),
        (PROBED, [TWO], ["a-adamw and b-adamw"]),
        (PROBED, [BY_DEPTH, "evaluate.multiscale=null"], []),
        (PROBED, [TWO, "report.compare=paper.figure3"], []),  # nothing is cut
        (PROBED, [TWO, "evaluate.probe.datasets=[scenes]"], []),  # no set of the paper's
        (PROBED, [TWO, "evaluate.multiscale=null"], ["a-adamw and b-adamw"]),
        (PROBED, [TWO, "evaluate.epochs=[2]"], []),  # at the share of its run the paper measures no skip network
    ],
)
def test_two_networks_for_one_cell(source: str, overrides: list[str], networks: list[str], tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(source.replace("DATA", "data"))
    compare, *_ = [one for one in overrides if one.startswith("report.compare")] or [""]
    study, variants = load_study(path, [*(one for one in overrides if one != compare), "report.compare=[]"])
    asked = {"paper.table1"} if source is SUPERVISED else {"paper.table2", "paper.table3"}
    if compare:
        asked = set(filter(None, [compare.partition("=")[2].strip("[]")]))
    named = study.report.model_copy(update={"compare": tuple(sorted(asked))})
    lines = list(contested(study.model_copy(update={"report": named}), variants))
    found = {line.partition(": ")[2].partition(" would ")[0] for line in lines}
    assert sorted(found) == networks, lines


def test_a_plan_of_them_ends_with_a_line_that_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(SUPERVISED.replace("DATA", "data").replace(SVG, "report: {compare: paper.table1}\n"))
    assert main(["plan", str(path), TWO]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "report.compare: paper.table1: a-adamw and b-adamw would stand in one cell" in line
