"""A chaos run of three minutes, and what judges one: ends, comparison and table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from dinoskip.io.files import write_json, write_manifest
from tests.chaos.campaign import slowness, without_places
from tests.chaos.disturbances import TABLE, Attempt, outputs, places_of
from tests.chaos.outcomes import (
    BEGIN,
    END,
    contents,
    differences,
    keep,
    kept,
    names_of,
    of_end,
    output_of,
    problems,
    read_log,
    table,
    with_table,
)
from tests.chaos.site import ROOT, Site
from tests.chaos.works import WORKS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_disturbed_study_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--minutes",
        "3",
        "--seed",
        "7",
        "--work",
        "study",
        "--out",
        str(tmp_path),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert any(entry["entry"] == "settled" for entry in read_log(tmp_path / "study" / "log.jsonl"))


STUDY = Path("/runs/tiny")
FILE = STUDY / "stages/features/a/ep3/0123456789abcdef/store/1.npy"


@pytest.mark.parametrize(
    ("code", "log", "expected"),
    [
        (0, "page: index.html", "end"),
        (-9, "10:00 data running", "stopped"),
        (75, "error: stopped by a signal", "stopped"),
        (130, "interrupted", "FAULT: exit 130"),
        (-15, "", "stopped"),
        (-15, "10:00 data running\n", "FAULT: exit -15"),
        (-15, "10:00 data running\npage: index.html\n", "stopped"),
        (3, f"error: {FILE}: content differs", "named"),
        (3, f"error: {FILE.parents[1]}: damaged", "named"),
        (3, "error: bad data", "FAULT: names nothing: error: bad data"),
        (3, "", "FAULT: exit 3 without an error"),
        (1, "error: internal", "FAULT: exit 1"),
        (0, "Traceback (most recent call last):", "FAULT: a traceback, exit 0"),
    ],
)
def test_how_a_run_may_end(code: int, log: str, expected: str) -> None:
    assert of_end(code, log, {-9, 3, 75}, names_of(FILE, STUDY)) == expected


def test_python_that_is_interrupted_before_the_program_is_no_fault_of_it() -> None:
    log = 'Traceback (most recent call last):\n  File "<frozen site>", line 1\nKeyboardInterrupt\n'
    assert of_end(-2, log, {130}, ()) == "stopped"
    assert of_end(-2, log.replace("<frozen site>", "dinoskip/cli/__init__.py"), {130}, ()).startswith("FAULT")


def test_what_is_removed_when_a_file_is_damaged() -> None:
    assert output_of(FILE, STUDY) == FILE.parents[1]
    assert output_of(STUDY / "report/index.html", STUDY) == STUDY / "report/index.html"
    partial = STUDY / "stages/pretrain/a/.partial-0123456789abcdef"
    assert output_of(partial / "checkpoints/step-00000001/head.safetensors", STUDY) == partial


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for node, value in (("data", 1), ("probe", 2)):
        place = tmp_path / "stages" / node / "0123456789abcdef"
        write_json(place / "rows.json", [value] * 99)
        write_manifest(place, {"node": node})
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "index.html").write_text("page")
    return tmp_path


def test_a_study_equals_itself_alone(study: Path) -> None:
    expected = contents(study)
    assert len(expected) == 3
    assert differences(expected, study) == problems(study) == []
    (study / "report" / "index.html").write_text("another")
    assert differences(expected, study) == ["report/index.html"]
    write_json(study / "stages/data/0123456789abcdef/rows.json", [3] * 99)
    assert len(problems(study)) == 1
    write_manifest(study / "stages/data/0123456789abcdef", {"node": "data"})
    assert differences(expected, study) == ["report/index.html", "stages/data/0123456789abcdef"]


def test_outputs_of_other_data_beside_those_of_a_node_are_no_difference(study: Path) -> None:
    expected = contents(study)
    for node, differs in (("data", []), ("weights", ["stages/weights/fedcba9876543210"])):
        write_json(study / f"stages/{node}/fedcba9876543210/rows.json", [4])
        write_manifest(study / f"stages/{node}/fedcba9876543210", {"node": node})
        assert differences(expected, study) == differs


def test_a_store_within_an_output_is_no_output_of_its_own(study: Path) -> None:
    store = study / "stages/data/0123456789abcdef/store"
    write_json(store / "features.json", {})
    write_manifest(store, {})
    assert [path.parent.name for path in outputs(study)] == ["data", "probe"]


@pytest.mark.parametrize("name", ["bit flipped before", "file torn before", "cache deleted before"])
def test_damage_is_done_and_recorded(name: str, study: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    site = Site.__new__(Site)  # no disk is mounted for it
    site.disk = tmp_path_factory.mktemp("disk")
    study.rename(site.study)
    expected = {path: path.read_bytes() for path in site.study.rglob("*") if path.is_file()}
    kind = next(kind for kind in TABLE if kind.name == name)
    attempt = Attempt(site, Random(3), "", 0.0, 1.0)
    assert kind.before is not None
    assert kind.before(attempt)
    (damaged,) = attempt.damaged
    changed = {path for path, content in expected.items() if not path.exists() or path.read_bytes() != content}
    assert changed
    assert all(path == damaged or damaged in path.parents for path in changed)


def test_table_counts_kinds_by_outcome(tmp_path: Path) -> None:
    def event(number: int, outcome: str, **did: str | None) -> dict[str, object]:
        kinds = [{"name": name, "did": what} for name, what in did.items()]
        whole = "; ".join(filter(None, did.values())) or None
        entry = {"entry": "event", "piece": "p", "number": number, "kinds": kinds, "did": whole, "outcome": outcome}
        return {**entry, "seconds": 1800.0 * number}

    def settled(numbers: list[int], outcome: str, found: bool) -> dict[str, object]:
        events = [("p", number) for number in numbers]
        return {"entry": "settled", "piece": "p", "events": events, "outcome": outcome, "found": found, "seconds": 0}

    entries = [
        event(1, "stopped", kill="SIGKILL"),
        event(2, "end", kill=None, flip="bit 3"),
        settled([1, 2], "equal", True),
        event(3, "named", flip="bit 4"),
        settled([3], "FAULT: differs", False),
        event(4, "FAULT: a traceback", flip="bit 5"),
        event(5, "FAULT: rank 0 still running after 90 s", flip="bit 6") | {"slow": 5.0},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"entry": "ev')
    lines = table(read_log(log)).splitlines()
    assert lines[2:5] == [
        "| kill | 2 | 0 | 1 | 0 | 0 | 1 | 0 | 0 |",
        "| flip | 4 | 0 | 0 | 0 | 1 | 0 | 1 | 2 |",
        "| all | 6 | 0 | 1 | 0 | 1 | 1 | 1 | 2 |",
    ]
    assert lines[-1].startswith("2.50 hours, 5 disturbed runs, 1 times compared")
    assert lines[-1].endswith("5.0 times slower than alone (median).")


def test_logs_of_pieces_are_kept_and_their_table_takes_the_place_of_the_last(tmp_path: Path) -> None:
    event = {"entry": "event", "number": 1, "kinds": [{"name": "kill", "did": "x"}], "did": "x", "outcome": "stopped"}
    for piece, disturbed_one in (("2026-11-27T01:00:00-knn-1", True), ("2026-11-27T02:00:00-knn-2", False)):
        entries = [{"entry": "piece"}, *([event] if disturbed_one else [])]
        (tmp_path / "out" / "knn").mkdir(parents=True, exist_ok=True)
        with open(tmp_path / "out" / "knn" / "log.jsonl", "a") as log:
            log.writelines(json.dumps({"piece": piece, "seconds": 3600, **entry}) + "\n" for entry in entries)
    for _ in range(2):
        keep(tmp_path / "out", tmp_path / "logs")
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["2026-11-27T010000-knn-1.jsonl"]
    page = with_table(f"before\n{BEGIN}old\n{END}after\n", kept(tmp_path / "logs"))
    assert page.startswith(f"before\n{BEGIN}")
    assert page.endswith(f"{END}after\n")
    assert "1.00 hours, 1 disturbed runs" in page
    assert "old" not in page
    assert with_table(page, kept(tmp_path / "logs")) == page


def disturbed(study: Path, name: str, seed: int) -> tuple[Attempt, str]:
    """A study after one disturbance by name, with what it did."""
    site = Site.__new__(Site)
    site.disk, site.out, site.work = study.parent, study.parent / "out", WORKS["study"]
    site.out.mkdir()
    site.places = places_of(study, study.parent)
    attempt = Attempt(site, Random(seed), "", 0.0, 1.0)
    before = next(kind for kind in TABLE if kind.name == name).before
    assert before is not None
    did = before(attempt)
    assert did is not None
    return attempt, did


@pytest.fixture
def tiny(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study.rename(tmp_path_factory.mktemp("disk") / "tiny")


@pytest.mark.parametrize("follows", [False, True])
def test_a_planted_link_is_taken_back_and_what_it_leads_to_compared(tiny: Path, follows: bool) -> None:
    attempt, _ = disturbed(tiny, "a planted link", 1)
    (link,) = attempt.damaged
    assert link.is_symlink()
    if follows:
        target = link / "rows.csv" if link.is_dir() else link
        target.write_text("another's")
    (look,) = attempt.after
    assert (look() is not None) == follows
    assert not link.is_symlink()


@pytest.mark.parametrize("again", [False, True])
def test_an_edited_note_is_put_back_unless_its_output_was_made_again(tiny: Path, again: bool) -> None:
    place = tiny / "stages" / "data" / "0123456789abcdef"
    write_json(place / "timing.json", {"seconds": 1})
    write_manifest(place, {"node": "data"})
    attempt, _ = disturbed(tiny, "a log or note edited", 0)
    assert problems(tiny)
    if again:
        write_manifest(place, {"node": "data"})
    (look,) = attempt.after
    assert (look() is not None) == again
    assert again or problems(tiny) == attempt.damaged == []


def test_an_output_is_named_by_a_link_that_stays(tiny: Path) -> None:
    attempt, _ = disturbed(tiny, "output named by a link", 0)
    (change,), (look,) = attempt.changes, attempt.after
    link = attempt.site.out / "link"
    assert change(0, ["run", f"output={tiny.parent}"]) == ["run", f"output={link}"]
    assert look() is None
    link.unlink()
    link.mkdir()
    assert look() is not None


def test_a_log_names_no_place_of_the_machine(tmp_path: Path) -> None:
    text = without_places(f"{tmp_path}/disk, {ROOT}/tests, {sys.prefix}/lib", tmp_path)
    assert text == "OUT/disk, ROOT/tests, PYTHON/lib"


def test_a_process_is_never_faster_than_alone() -> None:
    assert slowness() >= 1
