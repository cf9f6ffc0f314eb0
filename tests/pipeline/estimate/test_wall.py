"""Hours over workers: a greedy schedule of what each stage takes on a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import write_text
from dinoskip.pipeline.estimate.wall import greedy
from dinoskip.pipeline.graph import Node
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


def test_plan_says_hours_memory_disk_and_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "tiny.yaml", TINY + f"output: {tmp_path / 'runs'}\n")
    hours = {}
    for card in ("h100", "a100", "b300"):
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
    assert hours["h100"] < hours["a100"]
    assert hours["b300"] == hours["h100"]
