"""Depth on composed rooms, end to end: rows, records, choices, baselines and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dinoskip.errors import DataError
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult
from dinoskip_dense.depth import DepthConfig
from dinoskip_dense.depth.scores import NAMES, depth_scores
from dinoskip_dense.geometry import DepthDataset
from dinoskip_dense.sets.rooms import RoomsConfig
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("depth")

SETTINGS = {"iterations": 3, "batch_size": 2, "crop": (32, 32), "bins": 8, "maps": 2}
CONFIG = RoomsConfig(images=9, size=32, val_fraction=0.34)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> tuple[DepthDataset, DepthDataset]:
    folder = CONFIG.generate(tmp_path_factory.mktemp("rooms"))
    return CONFIG.open_depth(folder, "train", None), CONFIG.open_depth(folder, "val", None)


def rows_of(rooms: tuple[DepthDataset, DepthDataset], out: Path, **settings: object) -> list[EvalResult]:
    config = DepthConfig.model_validate({**SETTINGS, **settings})
    return evaluate(tiny_vit(), *rooms, "all", out, config, {"model": "net"}, multiscale=[1, 2], workers=1)


def test_every_block_and_the_blocks_together(rooms: tuple[DepthDataset, DepthDataset], tmp_path: Path) -> None:
    rows = rows_of(rooms, tmp_path, learning_rates=(1e-3, 1e-1), holdout=0.4)
    models = [row for row in rows if not row.is_baseline and not row.note]
    assert [(row.block, row.metric) for row in models] == [(b, name) for b in ("1", "2", "1+2") for name in NAMES]
    assert {(row.task, row.dataset, row.split, row.n, row.norm) for row in models} == {
        ("depth", "rooms", "val", 3, "none")
    }
    assert len([row for row in rows if row.note == "best on validation"]) == 3 * len(NAMES)
    records = read_records(tmp_path)
    for row, own in records.items():
        assert own.ids == rooms[1].ids
        assert 100 * np.nanmean(own.values) == pytest.approx(row.value)
    details = json.loads((tmp_path / "depth.json").read_text())["heads"]
    for one in details:
        assert one["learning_rate"] == one["learning_rates"][int(np.argmin(one["heldout_rmse"]))]
    assert {row.block for row in models if row.heldout is not None and row.metric == "delta1"} == {"1", "2", "1+2"}
    with np.load(tmp_path / "maps.npz", allow_pickle=False) as maps:
        assert maps["ids"].tolist() == list(rooms[1].ids[:2])
        assert maps["block1+2"].shape == (2, 8, 8)
    assert rows == rows_of(rooms, tmp_path / "again", learning_rates=(1e-3, 1e-1), holdout=0.4)


def test_without_held_out_images_the_choice_is_the_references_and_said(
    rooms: tuple[DepthDataset, DepthDataset], tmp_path: Path
) -> None:
    several = rows_of(rooms, tmp_path / "a", learning_rates=(1e-3, 1e-1), holdout=0.0)
    assert {row.note for row in several if not row.is_baseline} == {"best on validation"}
    one = rows_of(rooms, tmp_path / "b", holdout=0.0)
    assert {row.note for row in one} == {""}
    assert {row.heldout for row in one} == {None}


def test_baselines_are_the_median_and_the_mean_of_each_place(
    rooms: tuple[DepthDataset, DepthDataset], tmp_path: Path
) -> None:
    rows = {(row.model, row.metric): row.value for row in rows_of(rooms, tmp_path, evaluated="all")}
    train, val = rooms
    depths = np.stack([train.depth(i) for i in range(len(train))])
    constant = torch.full((32, 32), float(np.median(depths)))
    errors = [
        float(depth_scores(constant, torch.from_numpy(val.depth(i)), 1e-3, 10, "all")[0]) for i in range(len(val))
    ]
    assert rows["baseline: median depth", "RMSE"] == pytest.approx(np.mean(errors), abs=2e-3)
    mean = torch.from_numpy(depths.mean(0))
    errors = [float(depth_scores(mean, torch.from_numpy(val.depth(i)), 1e-3, 10, "all")[0]) for i in range(len(val))]
    assert rows["baseline: mean depth of each place", "RMSE"] == pytest.approx(np.mean(errors), rel=0.02)


def test_features_that_are_not_finite_and_heads_that_diverge_are_refused(
    rooms: tuple[DepthDataset, DepthDataset], tmp_path: Path
) -> None:
    broken = tiny_vit()
    torch.nn.init.constant_(broken.model.blocks[0].mlp.fc2.bias, float("inf"))
    config = DepthConfig.model_validate(SETTINGS)
    with pytest.raises(DataError, match="features of block 1 are not finite"):
        evaluate(broken, *rooms, "all", tmp_path, config, {}, workers=1)
    with pytest.raises(DataError, match="depth: block 1: no head has a score"):
        rows_of(rooms, tmp_path, learning_rates=(1e38,))
    assert not (tmp_path / "rows.json").exists()
