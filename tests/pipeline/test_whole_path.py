"""The whole path at its smallest, run for real; then what each change would run again."""

import json
import re
import shutil
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import MANIFEST, verify_manifest
from dinoskip.io.locks import directory_lock
from dinoskip.pipeline.report.notices import NOTE
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.study import STAGES, build_nodes, load_study
from dinoskip.results.rows import read_rows
from dinoskip.runtime.provenance import today
from tests.helpers.study import TINY

MEASURED = {"probe": 8, "tokencut": 16, "knn": 8, "retrieve": 8}
"""Evaluating stages, and over how many images each row is."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    config = folder / "tiny.yaml"
    config.write_text(TINY + f"output: {folder / 'runs'}\n")
    assert main(["run", str(config), "-q"]) == 0
    return config


def runner(config: Path, *overrides: str) -> Runner:
    study, variants = load_study(config, overrides)
    return Runner(study.directory, build_nodes(study, variants), STAGES)


def test_everything_is_there_and_verifies(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = done.parent / "runs" / "tiny"
    assert (root / "report" / "index.html").is_file()
    for manifest in root.rglob(MANIFEST):
        assert verify_manifest(manifest.parent) == []
    assert not [path for path in root.rglob("*") if path.name.startswith((".tmp", ".partial", ".lock"))]
    assert main(["verify", str(root)]) == 0
    assert main(["run", str(done), "--json"]) == 0
    happened = json.loads(capsys.readouterr().out)["stages"]
    assert set(happened.values()) == {"cached"}


def test_no_two_names_differ_in_case_only(done: Path) -> None:
    written = [str(path.relative_to(done.parent)) for path in (done.parent / "runs").rglob("*")]
    assert len(written) > 200
    assert len({name.casefold() for name in written}) == len(written), "one file on a disk that ignores case"


def test_rows_say_what_was_measured(done: Path) -> None:
    root = done.parent / "runs" / "tiny" / "stages"
    rows = [row for path in root.rglob("rows.json") for row in read_rows(path)]
    floor, rows = ([row for row in rows if row.is_baseline is which] for which in (True, False))
    assert {row.task for row in rows} == {row.task for row in floor} == set(MEASURED)
    assert {(row.block, row.weights) for row in floor} == {("", "")}
    assert len(set(floor)) == 2 + 2 + 1 + 1  # boxes, accuracy, probe, retrieval: of both
    assert {row.model for row in rows} == {"skip-adamw", "skipless-adamw"}
    for row in rows:
        assert row.depth == 2
        assert row.epoch == 1
        assert row.weights
        assert row.version
        assert row.optimizer == "adamw"
        assert row.initialisation in {"trunc_normal", "skipless"}
        assert row.n == MEASURED[row.task]
    for task, metric in (("probe", "mIoU"), ("tokencut", "CorLoc")):
        blocks = {row.block for row in rows if row.task == task and row.metric == metric and row.model == "skip-adamw"}
        assert {"1", "2", "1+2"} <= blocks


def test_status_and_plan_of_a_finished_study(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(done)]) == 0
    assert "mIoU" in capsys.readouterr().out
    assert main(["plan", str(done), "--json"]) == 0
    assert {step["state"] for step in json.loads(capsys.readouterr().out)} == {"cached"}
    assert main(["plan", str(done)]) == 0
    assert "left" not in capsys.readouterr().err


def test_a_plan_says_how_long_what_is_missing_will_take(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(done), "pretrain.epochs=2"]) == 0
    told = capsys.readouterr().err
    assert re.search(r"\d+ stages to run, [1-9]\d* cached", told)
    assert " left" not in told, "nothing was measured with these settings"
    probe = done.parent / "runs/tiny/stages/probe/skip-adamw"
    probe.rename(done.parent / "aside")
    try:
        assert main(["plan", str(done)]) == 0
        told = capsys.readouterr().err
        assert re.search(
            r"3 stages to run, \d+ cached(, about \S+ left \(2 stages not timed yet\))?$", told, re.MULTILINE
        ), "the other network's probe was timed"
    finally:
        (done.parent / "aside").rename(probe)


def test_status_of_a_training_whose_status_is_torn(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (
        ("whole", '{"state": "running", "step": 3, "steps": 9}'),
        ("torn", '{"state": "run'),
        ("none", ""),
    ):
        partial = tmp_path / "tiny" / "stages" / "pretrain" / name / ".partial-0123456789abcdef"
        partial.mkdir(parents=True)
        if text:
            (partial / "status.json").write_text(text)
    assert main(["status", str(done), f"output={tmp_path}"]) == 0
    said = capsys.readouterr()
    assert "whole: running, step 3 of 9" in said.out
    assert "torn" not in said.out
    assert "torn/.partial-0123456789abcdef/status.json: cannot be read as JSON" in said.err


def test_gallery_option_runs_gallery_and_report_only_and_gc_keeps_what_the_study_uses(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["gc", str(done), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unused"] == []
    shutil.copytree(done.parent / "runs", tmp_path / "runs")
    there = f"output={tmp_path / 'runs'}"
    assert main(["run", str(done), there, "gallery.first=2", "--json", "-q"]) == 0
    happened = json.loads(capsys.readouterr().out)["stages"]
    assert {node for node, what in happened.items() if what == "done"} == {"gallery", "report"}
    assert main(["gc", str(done), there, "gallery.first=2", "--delete", "--json"]) == 0
    unused = [Path(path).parent.name for path in json.loads(capsys.readouterr().out)["unused"]]
    assert sorted(unused) == ["gallery", "report"]
    assert main(["verify", str(tmp_path / "runs" / "tiny")]) == 0
    assert {step.state for step in runner(done, there, "gallery.first=2").plan()} == {"cached"}


def test_gc_leaves_unfinished_work_to_its_own_flag(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training of another configuration that was preempted, and one that is at work now."""
    shutil.copytree(done.parent / "runs", tmp_path / "runs")
    there, study = f"output={tmp_path / 'runs'}", tmp_path / "runs" / "tiny"
    work = study / "stages" / "pretrain" / "other" / ".partial-0123456789abcdef"
    (work / "checkpoints" / "step-00000004").mkdir(parents=True)
    (work / "checkpoints" / "step-00000004" / "student.safetensors").write_text("hours of work")
    assert main(["gc", str(done), there, "--delete", "-q"]) == 0
    assert work.is_dir()
    assert f"{work}  unfinished, " in capsys.readouterr().out
    with directory_lock(study / "running" / "pretrain" / "other"):
        assert main(["gc", str(done), there, "--delete-unfinished", "-q"]) == 5
        assert "a run is at work here" in capsys.readouterr().err
    with directory_lock(work):
        assert main(["gc", str(done), there, "--delete-unfinished", "-q"]) == 5
        captured = capsys.readouterr()
        assert f", in use: {work}: in use by process" in captured.out
    assert (work / "checkpoints" / "step-00000004" / "student.safetensors").is_file()
    assert main(["gc", str(done), there, "--delete-unfinished", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == [str(work)]
    assert not work.exists()
    assert main(["verify", str(study)]) == 0


AFTER_WEIGHTS = {"features", *MEASURED, "gallery", "report"}


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("gallery.first=2", {"gallery", "report"}),
        ("gallery.block=1", {"gallery", "report"}),
        ("report.note=x", {"report"}),
        ("report.title=x", {"report"}),
        ("evaluate.knn.k=[1]", {"knn", "gallery", "report"}),
        ("evaluate.retrieve.memory=9", {"retrieve", "gallery", "report"}),
        ("evaluate.retrieve.size=32", {"features", "retrieve", "gallery", "report"}),
        ("evaluate.retrieve.size=64", {"retrieve", "gallery", "report"}),  # the probe's features will do
        ("evaluate.probe.epochs=3", {"probe", "gallery", "report"}),
        ("evaluate.probe.learning_rates=[1e-3]", {"probe", "gallery", "report"}),
        ("evaluate.probe.size=32", {"features", "probe", "gallery", "report"}),
        ("evaluate.knn.size=32", {"features", "knn", "gallery", "report"}),
        ("evaluate.tokencut.facet=query", {"tokencut", "gallery", "report"}),  # streamed
        ("evaluate.tokencut.facet=[key, value]", {"features", "tokencut", "gallery", "report"}),  # one export of both
        ("evaluate.tokencut.tau=[0.2, 0.3]", {"tokencut", "gallery", "report"}),
        ("evaluate.tokencut.lost_k=9", {"tokencut", "gallery", "report"}),
        ("evaluate.norm=none", {"features", "probe", "knn", "retrieve", "gallery", "report"}),
        ("evaluate.multiscale=[2, 1]", {"probe", "tokencut", "gallery", "report"}),
        ("optimizer.lr=1e-4", {"pretrain", "weights"} | AFTER_WEIGHTS),
        ("pretrain.epochs=2", {"pretrain", "weights"} | AFTER_WEIGHTS),
        ("seed=1", {"pretrain", "weights"} | AFTER_WEIGHTS),
        ("data.scenes.seed=1", {"data", "pretrain", "weights"} | AFTER_WEIGHTS),
        ("pretrain.log_every=1", set()),
        ("pretrain.checkpoint_every_minutes=1", set()),
        ("output=.", None),
    ],
)
def test_what_a_change_runs_again(done: Path, override: str, stages: set[str] | None) -> None:
    steps = runner(done, override).plan()
    again = {step.node.stage for step in steps if step.state != "cached"}
    if stages is None:  # another output folder: nothing is there yet
        assert again == {step.node.stage for step in steps}
    else:
        assert again == stages


def test_a_variants_change_leaves_the_other_alone(done: Path) -> None:
    steps = runner(done, "variants.model.1.init.alpha=1.5").plan()
    again = {step.node.variant for step in steps if step.state != "cached"}
    assert again == {"skipless-adamw", ""}
    reason = next(step.reason for step in steps if step.node.id == "pretrain/skipless-adamw")
    assert reason == "model.init.alpha: 1.8 → 1.5"


def test_pca_pictures_are_reported_as_numbers_and_without_photographs(done: Path) -> None:
    root = done.parent / "runs" / "tiny"
    (gallery,) = (root / "stages" / "gallery").glob("*")
    rough = json.loads((gallery / "roughness.json").read_text())["models"]
    assert set(rough) == {"skip-adamw", "skipless-adamw"}
    assert {block for blocks in rough.values() for block in blocks} == {"1", "2"}
    assert all(len(own) == 3 and 0 < min(own) <= max(own) < 2 for blocks in rough.values() for own in blocks.values())
    text = (root / "report" / "report.md").read_text()
    assert "](img/roughness.svg)" in text
    (shown,) = re.findall(r"\]\((img/preview-\d.png)\)", text)
    (plain,) = gallery.glob("sheet-block*-plain.png")
    assert (root / "report" / shown).read_bytes() == plain.read_bytes()


def _report(done: Path, out: Path, *overrides: str) -> Path:
    """A copy of the study reported again; the page's folder."""
    if not out.exists():
        shutil.copytree(done.parent / "runs", out)
    assert main(["report", str(done), f"output={out}", *overrides, "-q"]) == 0
    return out / "tiny" / "report"


@pytest.mark.slow
def test_a_report_is_made_of_what_is_there(done: Path, tmp_path: Path) -> None:
    page = _report(done, tmp_path / "runs", "evaluate.knn.k=[1]", "gallery.first=2")
    text = (page / "report.md").read_text()
    assert "- knn/skip-adamw/ep1/scenes: not run (knn.k: \\[3\\] → \\[1\\])" in text
    assert "- gallery: not run (after knn/skip-adamw/ep1/scenes, knn/skipless-adamw/ep1/scenes)" in text
    assert "Not asked for: " in text
    assert "k-NN (k =" not in text.split("## Protocol")[0].split("## Numbers")[1]
    assert not (page / "gallery").exists()
    copied = tmp_path / "docs" / "study.md"
    _report(done, tmp_path / "runs", "evaluate.knn.k=[1]", "gallery.first=2", "--markdown", str(copied))
    pictures = re.findall(r"\]\(study/([\w.-]+)\)", copied.read_text())
    assert "loss.svg" in pictures
    assert sorted(path.name for path in (tmp_path / "docs" / "study").iterdir()) == sorted(pictures)


def test_an_untrained_network_never_stands_for_the_trained_one(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last epoch of one of two networks is still to be measured, as in a study of several processes."""
    shutil.copytree(done.parent / "runs", tmp_path / "runs")
    asked = (str(done), f"output={tmp_path / 'runs'}", "evaluate.epochs=[0,1]")
    assert main(["run", *asked, "--until", "knn", "-q"]) == 0
    shutil.rmtree(tmp_path / "runs" / "tiny" / "stages" / "knn" / "skipless-adamw" / "ep1")
    capsys.readouterr()
    assert main(["report", *asked, "-q"]) == 0
    chosen = [line for line in capsys.readouterr().out.splitlines() if line.startswith("k-NN (k = 3), scenes val")]
    assert [line for line in chosen if "with skips" in line]
    assert [line for line in chosen if "skipless" in line] == []
    text = (tmp_path / "runs" / "tiny" / "report" / "report.md").read_text()
    assert "- knn/skipless-adamw/ep1/scenes: not run (its output is missing or incomplete)" in text
    answer = text.partition("## Numbers")[0]
    (line,) = [line for line in answer.splitlines() if "with skips | k-NN (k = 3), scenes val |" in line]
    assert line.split(" | ")[2] == "not run"
    rows = read_rows(tmp_path / "runs" / "tiny" / "rows.json")
    assert {row.date for row in rows} == {today()}
    early = [row for row in rows if (row.task, row.model) == ("knn", "skipless-adamw")]
    assert {(row.epoch, row.note) for row in early} == {(0, NOTE)}


@pytest.mark.slow
def test_a_second_run_of_the_report_gives_the_same_bytes(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dinoskip.runtime.environment._commit", lambda: "0123456789ab")  # someone may commit meanwhile
    asked = ("report.note=again", "report.costs=true")
    first = _report(done, tmp_path / "runs", *asked)
    kept = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    shutil.rmtree(tmp_path / "runs" / "tiny" / "stages" / "report")
    shutil.rmtree(first)
    assert _report(done, tmp_path / "runs", *asked) == first
    again = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert len(kept) > 50
    costs = (first / "report.md").read_text().partition("### What it cost: training")[2]
    assert "not measured" not in costs
    for line in ("| pretrain | 2 |", "| retrieve | 2 |", "| gallery | 1 |"):
        assert line in costs
    assert [path for path in {**kept, **again} if kept.get(path) != again.get(path)] == []
