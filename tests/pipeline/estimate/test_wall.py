"""Hours over workers: a greedy schedule of what each stage takes on a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import write_text
from dinoskip.io.parts import HELPING, IMAGES
from dinoskip.pipeline.estimate.wall import OTHER, greedy, node_parts
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.study import build_nodes, load_study
from tests.helpers.study import TINY


def nodes() -> list[Node]:
    made = [Node(f"train/{name}", "train", {}) for name in "ab"]
    return made + [Node(f"eval/{name}{n}", "eval", {}, {"run": f"train/{name}"}) for name in "ab" for n in "12"]


SECONDS = {"train/a": 10.0, "train/b": 30.0, **dict.fromkeys(("eval/a1", "eval/a2", "eval/b1", "eval/b2"), 4.0)}


@pytest.mark.parametrize(("workers", "seconds"), [(1, 56.0), (2, 34.0), (4, 34.0)])
def test_the_longest_path_is_begun_first(workers: int, seconds: float) -> None:
    whole = greedy(nodes(), SECONDS, workers)
    assert (whole.seconds, whole.busy, whole.begins["train/b"]) == (seconds, 56.0, 0.0)
    assert whole.idle == pytest.approx(1 - 56 / (seconds * workers))


def test_wide_nodes_wait_for_all_their_workers_and_small_ones_pass() -> None:
    whole = greedy(nodes(), SECONDS, 2, lambda node: 2 if node.stage == "train" else 1)
    assert (whole.begins["train/b"], whole.begins["train/a"]) == (0.0, 30.0)
    assert (whole.seconds, whole.busy) == (48.0, 96.0)
    assert whole.idle == 0.0


def test_what_is_cached_takes_no_time() -> None:
    whole = greedy(nodes(), SECONDS, 2, cached={"train/b", "eval/b1"})
    assert (whole.seconds, whole.busy) == (14.0, 22.0)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_workers_without_a_node_make_parts_of_a_large_one(workers: int) -> None:
    """All begin after as long; a helper comes back after its time, and begins once more."""
    large, part = Node("large", "eval", {}), 10.0
    seconds, parts = {"large": OTHER + 100 * part}, {"large": 100}
    whole = greedy([large], seconds, workers, parts=parts)
    fewest = OTHER + 100 * part / workers
    again = OTHER * (1 + (whole.seconds - OTHER) // HELPING) + part
    assert fewest <= whole.seconds <= (fewest + again if workers > 1 else fewest)
    assert whole.busy == seconds["large"]
    assert greedy([large], seconds, workers).seconds == seconds["large"]


def test_a_node_that_becomes_ready_has_a_worker_when_a_helper_comes_back() -> None:
    """It is ready after 50 s, while the other worker helps; with its own worker it would be at work then."""
    every = [Node("large", "eval", {}), Node("first", "train", {}), Node("second", "eval", {}, {"run": "first"})]
    seconds = {"large": OTHER + 5000.0, "first": 50.0, "second": 100.0}
    whole = greedy(every, seconds, 3, parts={"large": 500})
    assert 50.0 <= whole.begins["second"] <= OTHER + HELPING + 10.0
    assert whole.seconds < 0.5 * seconds["large"]
    assert whole.busy == sum(seconds.values())


def test_parts_are_those_of_the_scored_images(tmp_path: Path) -> None:
    write_text(tmp_path / "tiny.yaml", TINY.replace("images: 16", "images: 600"))
    study, variants = load_study(str(tmp_path / "tiny.yaml"), [])
    nodes, images = build_nodes(study, variants), StudyImages(study)
    parts = node_parts(images, nodes)
    of_cuts = {parts[node.id] for node in nodes if node.stage == "tokencut"}
    assert of_cuts == {-(-images.count("scenes", "trainval", "detection") // IMAGES)}
    assert not {node.id for node in nodes if node.stage in {"pretrain", "probe", "features"}} & parts.keys()


def test_plan_says_hours_memory_disk_and_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "tiny.yaml", TINY + f"output: {tmp_path / 'runs'}\n")
    hours = {}
    for card in ("h100", "a100", "4090", "b300"):  # YAML reads 4090 as a number
        write_text(tmp_path / f"{card}.yaml", f"{{gpus_per_node: 4, jobs: 3, mem: 64G, card: {card}}}")
        words = ["plan", str(tmp_path / "tiny.yaml"), "--cluster", str(tmp_path / f"{card}.yaml")]
        assert main([*words, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        hours[card] = said["hours"]
        assert said["jobs"] == 3
        assert said["memory"] > 0
        assert said["peak_disk"] > 0
        assert {stage["node"].partition("/")[0] for stage in said["stages"]} >= {"pretrain", "probe", "tokencut"}
        assert ("not known" in said["about"]) is (card == "b300")
        assert main(words) == 0
        assert "16.0 GB" in capsys.readouterr().out
    assert hours["h100"] < hours["a100"] < hours["4090"]
    assert hours["b300"] == hours["h100"]
