"""A study run by two ranks at once, as torchrun or srun start it: they train and export, rank 0 does all else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dinoskip.features import FeatureStore
from dinoskip.io.files import read_json
from dinoskip.runtime.console import read_metrics
from tests.helpers.launch import rank_environments
from tests.helpers.study import TINY

pytestmark = pytest.mark.slow  # processes that import everything
SETTINGS = ["--device", "cpu", "model.skip=false", "variants.model=[{skip: false}]", "pretrain.epochs=2"]


def start(config: Path, env: dict[str, str], *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dinoskip", "run", str(config), *SETTINGS, *more],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def together(config: Path, *more: str) -> list[tuple[int, str, str]]:
    ranks = [start(config, env, *more) for env in rank_environments(2)]
    try:
        return [(out.returncode, *texts) for out in ranks for texts in [out.communicate(timeout=120)]]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(f"{TINY}\noutput: {tmp_path / 'runs'}\n")
    return path


def rows_of(study: Path) -> list[float]:
    (metrics,) = study.glob("stages/pretrain/*/*/metrics.jsonl")
    return [row["loss"] for row in read_metrics(metrics)]


def test_two_ranks_make_the_study_that_one_makes(config: Path, tmp_path: Path) -> None:
    (code, _, err), (other_code, other_out, other_err) = together(config, "--until", "features")
    assert (code, other_code) == (0, 0), err + other_err
    assert "pretrain/" in err
    assert other_out == ""
    assert "data/" not in other_err, "rank 1 composes no scenes"
    study = tmp_path / "runs" / "tiny"
    (env,) = study.glob("stages/pretrain/*/*/env.json")
    assert read_json(env)["world_size"] == 2
    assert len(list(study.glob("stages/weights/*/*/*/weights.safetensors"))) == 1
    assert "with 2 processes" in err
    stores = list(study.glob("stages/features/**/store"))
    assert stores
    assert all(FeatureStore.open(store).verify() == [] for store in stores)
    alone = start(config, {}, "--until", "weights", f"output={tmp_path / 'alone'}")
    _, err = alone.communicate(timeout=120)
    assert alone.returncode == 0, err
    assert rows_of(study) == pytest.approx(rows_of(tmp_path / "alone" / "tiny"), abs=1e-4)


def test_an_error_of_rank_0_lets_the_other_go(config: Path) -> None:
    (code, _, err), (other_code, _, other_err) = together(config, "--only", "weights")
    assert code == 2
    assert "cannot run before" in err
    assert other_code == 0, other_err
