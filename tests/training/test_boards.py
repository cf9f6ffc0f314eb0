"""Rows on TensorBoard and Weights & Biases, and that nothing they do touches a run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dinoskip.data import ImageFolder
from dinoskip.errors import DataError
from dinoskip.runtime.console import read_metrics
from dinoskip.training import pretrain
from dinoskip.training.boards import Boards
from tests.helpers.tiny import make_images, tensor_hashes, tiny_job


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return the scalars that TensorBoard itself reads of a folder: tag -> {step: value}."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = module.EventAccumulator(str(folder))
    reader.Reload()
    return {tag: {e.step: e.value for e in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}


def test_tensorboard_shows_the_rows_and_a_resume_supersedes_later_ones(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = Boards(["tensorboard"], tmp_path, 0, {})
    for step in range(1, 7):
        first.write(step, {"step": step, "loss": float(step), "collapse": False, "note": "no number"})
    first.close()
    again = Boards(["tensorboard"], tmp_path, 3, {})  # killed after step 6, the last checkpoint is of step 3
    again.write(4, {"step": 4, "loss": 40.0})
    again.close()
    shown = scalars(tmp_path / "boards" / "tensorboard")
    assert shown["loss"] == {1: 1.0, 2: 2.0, 3: 3.0, 4: 40.0}
    assert set(shown) == {"loss", "collapse"}


def test_a_run_with_boards_has_the_bits_of_one_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("tensorboard")
    images = ImageFolder.open(make_images(tmp_path / "images"))
    plain = pretrain(tiny_job(epochs=1, warmup_epochs=0), images, tmp_path / "plain", device="cpu")
    with caplog.at_level(logging.WARNING, "dinoskip"):
        job = tiny_job(epochs=1, warmup_epochs=0, boards=("tensorboard",))
        shown = pretrain(job, images, tmp_path / "shown", device="cpu")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert tensor_hashes(shown) == tensor_hashes(plain)
    rows = read_metrics(tmp_path / "shown" / "metrics.jsonl")
    on_board = scalars(tmp_path / "shown" / "boards" / "tensorboard")
    assert {row["step"]: row["loss"] for row in rows} == pytest.approx(on_board["loss"])
    assert not (tmp_path / "plain" / "boards").exists()


def test_the_boards_of_a_run_may_change_and_are_no_part_of_an_output(tmp_path: Path) -> None:
    from dinoskip.pipeline.artifacts import LEFT_OUT
    from dinoskip.training.boards import FOLDER
    from dinoskip.training.recipe import FREE_KEYS

    assert FOLDER in LEFT_OUT
    assert "boards" in FREE_KEYS
    with pytest.raises(ValueError, match="boards"):
        tiny_job(boards=("abacus",))


def test_an_error_of_the_run_still_closes_the_boards(tmp_path: Path) -> None:
    """The rows up to an error are on the board: nothing waits in a buffer."""
    pytest.importorskip("tensorboard")

    class Broken:
        score = "x"

        def __call__(self, network: object, here: object) -> dict[str, float]:
            raise DataError("the run fails here")

    images = ImageFolder.open(make_images(tmp_path / "images"))
    with pytest.raises(DataError, match="fails here"):
        pretrain(
            tiny_job(boards=("tensorboard",), online_every=1), images, tmp_path / "run", device="cpu", observer=Broken()
        )
    assert set(scalars(tmp_path / "run" / "boards" / "tensorboard")["loss"]) == {1, 2, 3, 4, 5}
