"""Linear classification on folders of three classes: rows, records, choices, baselines and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.errors import DataError
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult
from dinoskip_dense.linear import LinearConfig
from dinoskip_dense.linear.fit import LinearHits
from tests.helpers.labelled import make_classes
from tests.helpers.tasks import evaluation_of
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("linear")

SETTINGS = {
    "batch_size": 6,
    "epochs": 3,
    "size": 32,
    "learning_rates": (1e-3, 1.0, 10.0),
    "last": (1, 2),
    "holdout": 0.3,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabelledFolder, LabelledFolder]:
    root = tmp_path_factory.mktemp("classes")
    return LabelledFolder.open(make_classes(root / "train", 6)), LabelledFolder.open(
        make_classes(root / "val", 4, seed=1)
    )


def rows_of(folders: tuple[LabelledFolder, LabelledFolder], out: Path, **settings: object) -> list[EvalResult]:
    config = LinearConfig.model_validate({**SETTINGS, **settings})
    return evaluate(tiny_vit(), *folders, "all", out, config, {"model": "net", "dataset": "shapes"}, workers=1)


def test_rows_records_and_trials(folders: tuple[LabelledFolder, LabelledFolder], tmp_path: Path) -> None:
    rows = rows_of(folders, tmp_path)
    models = [row for row in rows if not row.is_baseline and not row.note]
    assert [row.block for row in models] == ["1", "2", "1+2"]
    assert {(row.metric, row.task, row.n, row.classes, row.norm) for row in models} == {
        ("top1", "linear", 12, 3, "final")
    }
    assert max(row.value for row in models) > 60, "three colours are told apart"
    for row, own in read_records(tmp_path).items():
        assert own.ids == folders[1].ids
        assert 100 * own.values.mean() == pytest.approx(row.value)
    for one, row in zip(json.loads((tmp_path / "linear.json").read_text())["heads"], models, strict=True):
        heldout = np.array(one["heldout_top1"])
        assert heldout.shape == (2, 3)
        assert 100 * heldout.max() == pytest.approx(row.heldout)
        chosen = one["inputs"].index(one["input"]), one["learning_rates"].index(one["learning_rate"])
        assert heldout[chosen] == heldout.max()
        assert 100 * np.array(one["validation_top1"])[chosen] == pytest.approx(row.value)
    assert [(row.model, row.value) for row in rows if row.is_baseline] == [
        ("baseline: majority class", pytest.approx(100 / 3)), ("baseline: chance", pytest.approx(100 / 3)),
    ]  # fmt: skip
    assert rows == rows_of(folders, tmp_path / "again")


def test_the_head_is_chosen_on_held_out_images_though_validation_prefers_another(
    folders: tuple[LabelledFolder, LabelledFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hits(heads: object, folder: LabelledFolder, rows: np.ndarray, title: str, workers: int) -> LinearHits:
        """The second of three rates is right on all held-out images and on no validation image, the others on half."""
        flags = np.zeros((len(heads.stack.groups), 3, len(rows)), dtype=bool)  # type: ignore[attr-defined]
        flags[:, ::2, ::2] = True
        flags[:, 1] = title == "held-out"
        return LinearHits(flags, flags)

    monkeypatch.setattr("dinoskip_dense.linear.evaluation.score_heads", hits)
    rows = [row for row in rows_of(folders, tmp_path, epochs=1) if not row.is_baseline]
    assert {(row.value, row.heldout) for row in rows if not row.note} == {(0.0, 100.0)}
    assert {row.value for row in rows if row.note == "best on validation"} == {50.0}
    for head in json.loads((tmp_path / "linear.json").read_text())["heads"]:
        assert head["learning_rate"] == head["learning_rates"][1]


def test_without_held_out_images_the_choice_is_dinov2s_and_said(
    folders: tuple[LabelledFolder, LabelledFolder], tmp_path: Path
) -> None:
    rows = rows_of(folders, tmp_path, holdout=0.0)
    assert {row.note for row in rows if not row.is_baseline} == {"best on validation"}
    assert {(row.is_baseline, row.selected) for row in rows} == {(False, "shown"), (True, "fixed")}
    single = rows_of(folders, tmp_path / "b", protocol="dino", learning_rates=(1.0,), holdout=0.0)
    assert {row.note for row in single} == {""}
    chosen_input = {row.selected for row in single if not row.is_baseline}
    assert chosen_input <= {"fixed", "shown"}


def test_features_that_are_not_finite_and_heads_that_diverge_are_refused(
    folders: tuple[LabelledFolder, LabelledFolder], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="linear: block 1: every head has diverged"):
        rows_of(folders, tmp_path, learning_rates=(1e38,))
    broken = tiny_vit()
    torch.nn.init.constant_(broken.model.blocks[1].mlp.fc2.bias, float("nan"))
    with pytest.raises(DataError, match="features of block 2 are not finite"):
        evaluate(
            broken, *folders, "all", tmp_path, LinearConfig.model_validate(SETTINGS), {"dataset": "shapes"}, workers=1
        )


def test_rows_say_what_was_changed() -> None:
    assert LinearConfig().label == "dinov2"
    assert LinearConfig(protocol="dino", inputs=("cls", "cls+mean")).label == "dino, inputs cls cls+mean"
    with pytest.raises(ValueError, match="0 < low <= high"):
        LinearConfig(scale=(0.9, 0.5))
