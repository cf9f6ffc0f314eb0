"""The section ``sweep`` of a study: learning rates chosen by short runs, cached, resumed, and shown."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError, NonFiniteError
from dinoskip.io.files import read_json, write_json
from dinoskip.pipeline.stages.pretrain import SWEEP_RESULT
from dinoskip.pipeline.stages.sweep import STAGE, ShortRun, SweepResult, best, beyond_edge, unresolved
from dinoskip.pipeline.study import build_nodes, load_study
from tests.helpers.study import TINY

SWEEP = """
online: {knn: {dataset: scenes, size: 32, k: [3], held_out: true, train_images: 5, val_images: 3}}
sweep: {lr: [1e-3, 1e-2], extend: 0, pretrain: {epochs: 1}}
"""
SMALL = (
    "data.scenes.images=12", "variants.model=[{skip: true}]", "pretrain.epochs=2", "evaluate.probe.datasets=[]",
    "evaluate.tokencut.datasets=[]", "evaluate.knn.datasets=[]", "evaluate.retrieve.datasets=[]",
    "evaluate.multiscale=null",
)  # fmt: skip


def written(tmp_path: Path, text: str = SWEEP) -> str:
    path = tmp_path / "s.yaml"
    path.write_text(TINY + text)
    return str(path)


def keys(path: str, *overrides: str) -> dict[str, Any]:
    return {n.id: (n.plain, n.inputs) for n in build_nodes(*load_study(path, overrides)) if n.stage == "sweep"}


def test_best_is_the_highest_and_of_equals_the_smallest() -> None:
    rows = [ShortRun(3e-3, 40.0, None), ShortRun(1e-3, 40.0, None), ShortRun(1e-2, 12.0, None)]
    assert best(rows) == 1e-3
    assert best([ShortRun(1e-3, None, None), ShortRun(1e-2, 0.0, None)]) == 1e-2, "what failed is the worst"
    with pytest.raises(NonFiniteError, match="every short run failed"):
        best([ShortRun(1e-3, None, None), ShortRun(1e-2, None, None)])


def test_while_the_best_rate_is_at_an_edge_the_next_one_is_beyond_it() -> None:
    rows = [ShortRun(1e-3, 20.0, None), ShortRun(3e-3, 30.0, None), ShortRun(9e-3, 31.0, None)]
    assert beyond_edge(rows) == pytest.approx(27e-3)
    assert beyond_edge([*rows, ShortRun(27e-3, None, None)]) is None, "a rate that diverges ends the search"
    assert beyond_edge([replace(row, value=12.0) for row in rows]) == pytest.approx(1e-3 / 3), "a plateau has edges too"
    assert beyond_edge([ShortRun(1e-3, 30.0, None), *rows[1:2], ShortRun(9e-3, 2.0, None)]) == pytest.approx(1e-3 / 3)


def test_a_rate_is_resolved_between_others_of_five_or_more_and_above_the_most_frequent_class() -> None:
    rows = [ShortRun(10.0**i, value, None) for i, value in enumerate((10.0, 20.0, 30.0, 20.0, 10.0))]
    assert unresolved(rows, 11.5) == ""
    assert "no rate is above" in unresolved(rows, 30.0)
    assert "4 rates were tried" in unresolved(rows[:4], 11.5)
    assert "the lowest or highest" in unresolved([*rows[:4], ShortRun(1e4, 31.0, None)], 11.5)


def test_the_grid_grows_at_its_edges_and_says_what_came_out(tmp_path: Path) -> None:
    arguments = ["run", written(tmp_path), *SMALL, f"output={tmp_path / 'out'}", "--until", "sweep"]
    assert main([*arguments, "sweep.extend=2"]) == 0
    (path,) = (tmp_path / "out/tiny/stages/sweep").glob("*/*/sweep.json")
    result = read_json(path)
    rates = result["rates"]
    assert [row["lr"] for row in rates] == sorted(row["lr"] for row in rates)
    assert len(rates) in {3, 4}, "of two rates the best is always at an edge, of three it may not be"
    assert all(later["lr"] / row["lr"] == pytest.approx(10) for row, later in pairwise(rates))
    assert result["unresolved"]
    assert 0 <= result["trivial"] <= 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep: {lr: [1e-3, 1e-2]}", "sweep: needs pretrain, and online.knn or online.probe"),
        (SWEEP.replace("lr: [1e-3, 1e-2]", "lr: [1e-3]"), "sweep.lr"),
        (SWEEP.replace("{epochs: 1}", "{epochs: 1, warmup_epochs: 3}"), "sweep.pretrain: warmup_epochs: 3"),
        (SWEEP.replace("{epochs: 1}", "{epoch: 1}"), "sweep.pretrain.epoch: "),
    ],
)
def test_what_cannot_work_is_said_before_training(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(written(tmp_path, text), SMALL)


def test_what_it_is_chosen_by_is_in_its_key_and_the_replaced_rate_is_not(tmp_path: Path) -> None:
    path = written(tmp_path)
    plain = keys(path, *SMALL)
    assert list(plain) == ["sweep/skip-adamw"]
    seeds = build_nodes(*load_study(path, [*SMALL, "variants.seeds=[0, 1]"]))
    assert [node.id for node in seeds if node.stage == "sweep"] == ["sweep/skip-adamw"], "seeds share a sweep"
    assert [node.inputs["sweep"] for node in seeds if node.stage == "pretrain"] == ["sweep/skip-adamw"] * 2
    assert [node.plain for node in seeds if node.stage == "sweep"] == [plain["sweep/skip-adamw"][0]]
    assert plain == keys(path, *SMALL, "optimizer.lr=7e-4", "pretrain.epochs=5", "pretrain.log_every=3")
    assert plain != keys(path, *SMALL, "online.knn.k=[1]")
    assert plain != keys(path, *SMALL, "optimizer.weight_decay=0.1")
    assert plain != keys(path, *SMALL, "sweep.pretrain.batch_size=2")


def test_a_rate_is_chosen_by_the_best_of_all_blocks(tmp_path: Path) -> None:
    """The last block of a skipless network is not its best, and a sweep by it chose another rate."""
    probed = "probe: {dataset: scenes, size: 32, train_images: 5, val_images: 3}"
    path = written(tmp_path, SWEEP.replace("online: {", f"online: {{{probed}, "))
    for blocks in ("[0]", "[1]", "all"):
        asked = [f"online.{part}.blocks={blocks}" for part in ("knn", "probe")]
        nodes = build_nodes(*load_study(path, [*SMALL, *asked]))
        (sweep,) = (node for node in nodes if node.stage == "sweep")
        assert {name: part.blocks for name, part in sweep.settings.online.parts.items()} == dict.fromkeys(
            ("knn", "probe"), "all"
        )
        assert {name: part["blocks"] for name, part in sweep.plain["online"].items()} == dict.fromkeys(
            ("knn", "probe"), "all"
        )


def test_of_a_sweep_the_rate_alone_is_told_to_the_training(tmp_path: Path) -> None:
    """A choice by other images with the same outcome thus trains nothing again."""
    told = []
    for name, lr, value in (("val", 1e-3, 40.0), ("held out", 1e-3, 38.0), ("other", 1e-2, 38.0)):
        result = SweepResult("knn3_top1", 1, lr, "", 12.0, [ShortRun(lr, value, None)])
        write_json(tmp_path / name / SWEEP_RESULT, asdict(result))
        told.append(STAGE.tells(tmp_path / name))
    assert told == [1e-3, 1e-3, 1e-2]


def test_images_held_out_are_the_default_and_change_the_key_of_a_sweep_alone(tmp_path: Path) -> None:
    path, off = written(tmp_path), "online.knn.held_out=false"
    asked = SWEEP.replace(" held_out: true,", "")
    assert keys(path, *SMALL) == keys(written(tmp_path, asked), *SMALL)
    assert keys(path, *SMALL) != keys(path, *SMALL, off)
    plain = "online: {knn: {dataset: scenes, size: 32, k: [3]}}\n"
    (tmp_path / "plain.yaml").write_text(TINY + plain)
    trained = [
        [(node.id, node.plain, node.inputs) for node in build_nodes(*load_study(tmp_path / "plain.yaml", settings))
         if node.stage == "pretrain"]
        for settings in ([*SMALL, "pretrain.online_every=1"], [*SMALL, "pretrain.online_every=1", off])
    ]  # fmt: skip
    assert trained[0] == trained[1], "what is measured while it trains repeats no training"
    probe = TINY + "online: {probe: {dataset: scenes, size: 32, blocks: [0]}}\nsweep: {lr: [1e-3, 1e-2]}\n"
    (tmp_path / "probe.yaml").write_text(probe)
    ((plain_probe, _),) = keys(str(tmp_path / "probe.yaml"), *SMALL).values()
    assert "held_out" not in plain_probe["online"]["probe"], "sweeps of before are found"


def test_the_chosen_rate_trains_the_variant(tmp_path: Path) -> None:
    arguments = ["run", written(tmp_path), *SMALL, f"output={tmp_path / 'out'}", "--until", "pretrain"]
    assert main(arguments) == 0
    (found,) = (tmp_path / "out/tiny/stages/sweep").glob("*/*/sweep.json")
    assert {path.name for path in found.parent.iterdir()} == {"sweep.json", "MANIFEST.json", "timing.json"}
    result = read_json(found)
    assert [row["lr"] for row in result["rates"]] == [1e-3, 1e-2]
    assert all(0 <= row["value"] <= 100 and row["loss"] > 0 for row in result["rates"])
    assert result["measure"] == "knn3_top1"
    (run,) = (tmp_path / "out/tiny/stages/pretrain").glob("*/*/config.json")
    config = read_json(run)
    assert config["optimizer"]["lr"] == result["lr"]
    assert config["pretrain"]["epochs"] == 2


def test_a_rate_whose_run_ends_without_a_finite_step_is_the_worst(tmp_path: Path) -> None:
    short = SWEEP.replace("{epochs: 1}", "{epochs: 3, batch_size: 4}")
    arguments = ["run", written(tmp_path, short), *SMALL, f"output={tmp_path / 'out'}", "--until", "sweep"]
    assert main([*arguments, "sweep.lr=[1e-3, 1.0000001e-3, 1e36]"]) == 0
    (found,) = (tmp_path / "out/tiny/stages/sweep").glob("*/*/sweep.json")
    result = read_json(found)
    assert result["rates"][2] == {"lr": 1e36, "value": None, "loss": None}
    assert result["lr"] < 1e-2
    assert all(row["loss"] > 0 for row in result["rates"][:2]), "rates that are nearly equal have runs of their own"


def test_killed_after_the_choice_no_run_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["run", written(tmp_path), *SMALL, f"output={tmp_path / 'out'}", "--until", "sweep"]
    remove = shutil.rmtree

    def killed(path: Path, **how: bool) -> None:
        remove(path, **how)
        if path.name == "lr0.001":
            raise RecursionError

    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", killed)
        with pytest.raises(RecursionError):
            main(arguments)
    monkeypatch.setattr("dinoskip.training.pretraining.pretrain", None)  # would fail
    assert main(arguments) == 0
    (found,) = (tmp_path / "out/tiny/stages/sweep").glob("*/*/sweep.json")
    assert {path.name for path in found.parent.iterdir()} == {"sweep.json", "MANIFEST.json", "timing.json"}
