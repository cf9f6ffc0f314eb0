"""Surface normals of composed rooms, end to end: rows, records, choices, baselines and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dinoskip.errors import DataError
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult
from dinoskip_dense.geometry import NormalsDataset
from dinoskip_dense.normals import NAMES, NormalsConfig, normal_scores
from dinoskip_dense.sets.rooms import RoomsConfig
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("normals")

CONFIG = RoomsConfig(images=9, size=32, val_fraction=0.34)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> tuple[NormalsDataset, NormalsDataset]:
    folder = CONFIG.generate(tmp_path_factory.mktemp("rooms"))
    return CONFIG.open_normals(folder, "train", None), CONFIG.open_normals(folder, "val", None)


def rows_of(rooms: tuple[NormalsDataset, NormalsDataset], out: Path, **settings: object) -> list[EvalResult]:
    config = NormalsConfig.model_validate({"epochs": 2, "batch_size": 2, "maps": 2, "holdout": 0.4, **settings})
    return evaluate(tiny_vit(), *rooms, "all", out, config, {"model": "net"}, multiscale=[1, 2], workers=1)


def test_every_block_and_the_blocks_together(rooms: tuple[NormalsDataset, NormalsDataset], tmp_path: Path) -> None:
    rows = rows_of(rooms, tmp_path, learning_rates=(1e-3, 1e-1))
    models = [row for row in rows if not row.is_baseline and not row.note]
    assert [(row.block, row.metric) for row in models] == [(b, name) for b in ("1", "2", "1+2") for name in NAMES]
    assert {row.protocol.split(",")[0] for row in models} == {"probe3d linear"}
    for row, own in read_records(tmp_path).items():
        assert own.ids == rooms[1].ids
        assert 100 * np.nanmean(own.values) == pytest.approx(row.value)
    for one in json.loads((tmp_path / "normals.json").read_text())["heads"]:
        assert one["learning_rate"] == one["learning_rates"][int(np.argmin(one["heldout_rmse"]))]
    with np.load(tmp_path / "maps.npz", allow_pickle=False) as maps:
        assert maps["ids"].tolist() == list(rooms[1].ids[:2])
        np.testing.assert_allclose(np.linalg.norm(maps["block2"].astype(float), axis=1), 1, atol=0.01)
    again = rows_of(rooms, tmp_path / "again", learning_rates=(1e-3, 1e-1))
    assert list(map(repr, rows)) == list(map(repr, again))  # a NaN equals none


def test_baselines_are_the_mean_normal_and_that_of_each_place(
    rooms: tuple[NormalsDataset, NormalsDataset], tmp_path: Path
) -> None:
    rows = {(row.model, row.metric): row.value for row in rows_of(rooms, tmp_path, holdout=0.0)}
    train, val = rooms
    normals = np.stack([train.read(i).normals for i in range(len(train))])
    for name, mean in (("mean normal", normals.mean((0, 1, 2))), ("mean normal of each place", normals.mean(0))):
        guess = torch.from_numpy(np.broadcast_to(mean, (32, 32, 3)).copy()).permute(2, 0, 1)
        errors = [
            float(normal_scores(guess, torch.from_numpy(one.normals).permute(2, 0, 1), torch.from_numpy(one.valid))[0])
            for one in map(val.read, range(len(val)))
        ]
        assert rows[f"baseline: {name}", "RMSE angle"] == pytest.approx(np.mean(errors), rel=0.03)


def test_features_that_are_not_finite_and_heads_that_diverge_are_refused(
    rooms: tuple[NormalsDataset, NormalsDataset], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="normals: block 1: no head has a score"):
        rows_of(rooms, tmp_path, learning_rates=(1e38,))
    broken = tiny_vit()
    torch.nn.init.constant_(broken.model.blocks[1].mlp.fc2.bias, float("nan"))
    with pytest.raises(DataError, match="features of block 2 are not finite"):
        evaluate(broken, *rooms, [2], tmp_path, NormalsConfig(), {}, workers=1)


def test_settings_cost_no_torch_and_rows_say_what_was_changed() -> None:
    code = "import sys, dinoskip_dense.normals.config, dinoskip_dense.normals; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert NormalsConfig(epochs=3, learning_rates=(0.1,)).label == "probe3d linear, learning rates 0.1, epochs 3"
