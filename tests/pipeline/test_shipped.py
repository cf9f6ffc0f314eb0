"""Every configuration that ships runs to its end, small, on data laid out as the real sets are, and fills its cells.

A configuration is found by its place below configs/; one that cannot be shrunk, planned or run fails by its name. Which
cells it has is read off its settings (:mod:`dinoskip.pipeline.rehearsal.filled`): numbers of every network, data set
and block, cells of the papers' tables, lines of the answer, figures, columns and pictures of the gallery. Each run
prints a line of them.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.pipeline.rehearsal.filled import filled
from dinoskip.pipeline.study import STAGES, load_study
from tests.helpers.absent_parts import names_an_absent_part
from tests.helpers.shipped import CONFIGS, NOT_RUN, SHIPPED, write_shrunk
from tests.pipeline.shipped_page import table

QUICK = ("start/features.yaml",)
"""Run whole in the default suite, the cheapest; all run with ``-m slow``."""

FIRST_TRAINED = (("paper/table1_supervised.yaml", "skip-adamw"),)
"""Trained in the default suite: a thousand images by the whole augmentation of classifiers."""


PAGE = CONFIGS.parent / "docs" / "configurations.md"
"""What :mod:`tests.pipeline.shipped_page` prints of a run of all."""


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all are run: data sets that several name are made once."""
    return tmp_path_factory.mktemp("shipped")


@pytest.fixture(autouse=True)
def has_its_parts(request: pytest.FixtureRequest) -> None:
    """A configuration that asks for a part of a plug-in is skipped where that is not installed."""
    if name := getattr(getattr(request.node, "callspec", None), "params", {}).get("name"):
        try:
            load_study(CONFIGS / name)
        except ConfigError as error:
            if any(map(names_an_absent_part, error.problems)):
                pytest.skip(f"{name} asks for parts of plug-ins that are not installed")


def listed() -> list[str]:
    """The configurations of :data:`PAGE`."""
    return re.findall(r"^\| \[.*?\]\(\.\./configs/(.*?)\)", PAGE.read_text(), re.MULTILINE)


def run_whole(name: str, below: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A shipped configuration, shrunk, to its report; what it is for is filled."""
    started, cpu = time.monotonic(), time.process_time()
    path = write_shrunk(name, below)
    monkeypatch.chdir(path.parent)
    output = f"output=runs/{Path(name).with_suffix('')}"  # tables of one study folder would make each other's pages
    assert main(["run", path.name, output, "--device", "cpu", "-q"]) == 0, f"{name}: {capsys.readouterr().err[-2000:]}"
    study, variants = load_study(path.name, [output])
    there = filled(study, variants, study.results)
    assert not there.faults, f"{name}, {len(there.faults)} missing:\n" + "\n".join(there.faults[:20])
    assert there.counts, name
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    counts = ", ".join(f"{sort} {number}" for sort, number in there.counts.items())
    with capsys.disabled():
        print(f"\n{name}: {seconds:.0f} s ({cpu:.0f} of a core); {counts}")


def test_the_page_lists_what_ships() -> None:
    assert sorted(listed()) == sorted(SHIPPED)
    line = "\nquick.yaml: 60 s (20 of a core); blocks 9, paper.table2 3"
    assert table([line]).splitlines()[-1] == "| [quick](../configs/quick.yaml) | 60 | 20 | blocks 9, paper.table2 3 |"
    with pytest.raises(ValueError, match="no line of a run"):
        table(["1 passed"])


def test_what_is_not_run_is_extended_by_what_is() -> None:
    texts = {name: (CONFIGS / name).read_text() for name in SHIPPED}
    for name in NOT_RUN:
        folder, _, file = name.rpartition("/")
        assert any(f"extends: [{file}]" in text or f"extends: {file}" in text
                   for other, text in texts.items() if other.startswith(f"{folder}/")), name  # fmt: skip


FIRST_OF_FOLDER = {name.rpartition("/")[0]: name for name in reversed(SHIPPED)}.values()


@pytest.mark.parametrize(  # all are loaded by test_house
    "name", [name if name in FIRST_OF_FOLDER else pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED]
)
def test_is_planned(
    name: str, below: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_shrunk(name, below)
    monkeypatch.chdir(path.parent)
    assert main(["plan", path.name, "output=planned", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)
    assert {"report", *({"analyze"} & STAGES.keys())} <= {step["stage"] for step in steps}
    assert all(step["state"] == "run" or step["reason"].startswith("after ") for step in steps), "nothing is missing"


@pytest.mark.parametrize("name", QUICK)
def test_the_cheapest_run_whole(
    name: str, below: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_whole(name, below, monkeypatch, capsys)


@pytest.mark.slow  # a smaller one in stages/test_supervise.py
@pytest.mark.parametrize(("name", "variant"), FIRST_TRAINED)
def test_a_network_of_a_labelled_recipe_is_trained(
    name: str, variant: str, below: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shrunk(name, below)
    monkeypatch.chdir(path.parent)
    command = [
        "run",
        path.name,
        "output=trained",
        "--variant",
        variant,
        "--until",
        "supervise",
        "--device",
        "cpu",
        "-q",
    ]
    assert main(command) == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SHIPPED)
def test_runs_whole(
    name: str, below: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_whole(name, below, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_page_of_the_whole_paper_is_filled(
    below: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for name in ("paper/table2_dino.yaml", "paper/figure2_epochs.yaml", "paper/table3_depth.yaml"):
        path = write_shrunk(name, below, whole=True)
        monkeypatch.chdir(path.parent)
        assert main(["run", path.name, "output=runs/whole", "--device", "cpu", "-q"]) == 0
        folders.append(str(load_study(path.name, ["output=runs/whole"])[0].results))
    capsys.readouterr()
    assert main(["paper", "cutting_the_skip", *folders, "--out", "page", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert all(cells[name][0] == cells[name][1] for name in cells if name != "paper.table1"), cells
    page = Path("page/cutting_the_skip/index.html").read_text()
    assert "configs/paper/table1_supervised.yaml" in page
    assert page.count("not run") <= 2 * 6 * 3, "table 1 alone"
