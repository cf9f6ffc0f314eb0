"""Properties of a run by any objective: same bits after a kill, by either source of images, on any number of ranks."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

from dinoskip.data import ImageFolder
from dinoskip.data.shards import open_source
from dinoskip.io.files import load_tensors, read_json
from dinoskip.models.load import load_backbone
from dinoskip.settings.specs import exported_weights
from dinoskip.training import compilation, pretrain
from dinoskip.training.objectives import OBJECTIVES
from tests.helpers.photographs import photographs
from tests.helpers.tiny import SMALL_OBJECTIVES, make_images, objective_job, rows_of, tensor_hashes
from tests.training.test_resume import OPTIMIZERS, folder, killed_before

OTHERS = list(SMALL_OBJECTIVES)


def test_all_objectives_are_tried() -> None:
    assert set(OBJECTIVES) == {"dino", *OTHERS}


@pytest.mark.parametrize(  # patch contrast has a queue as distillation has, the masks of MAE are as iBOT's
    "objective",
    [one if one in ("patch_contrast", "mae") else pytest.param(one, marks=pytest.mark.slow) for one in OTHERS],
)
@pytest.mark.parametrize(
    "optimizer", [pytest.param(one, marks=pytest.mark.slow if one != "adamw" else ()) for one in OPTIMIZERS]
)
def test_a_killed_run_ends_with_the_bits_of_a_straight_one(
    objective: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, run_dir = objective_job(objective, optimizer), tmp_path / "run"
    straight = pretrain(job, folder(), tmp_path / "straight", device="cpu")
    for step in (3, 6):
        killed_before(step, job, run_dir, monkeypatch)
    assert tensor_hashes(pretrain(job, folder(), run_dir, device="cpu")) == tensor_hashes(straight)
    assert rows_of(run_dir) == rows_of(tmp_path / "straight")
    losses = [row["loss"] for row in rows_of(run_dir)]
    assert len(set(losses)) == len(losses) == 8


@pytest.mark.slow  # loaders and objectives are tested alone
@pytest.mark.parametrize("objective", OTHERS)
def test_however_images_come_the_run_is_the_same(objective: str, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 16)
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        for path in sorted(images.iterdir()):
            archive.add(path, path.name)
    of_folder, of_archive = ImageFolder.open(images), open_source(tmp_path / "images.tar")
    rows = {}
    for source, path, workers in (
        (of_folder, "crops", 0), (of_folder, "crops", 2), (of_folder, "decode", 0), (of_folder, "resident", 0),
        (of_archive, "crops", 0),
    ):  # fmt: skip
        name = f"{path}{workers}{source is of_archive}"
        job = objective_job(objective, epochs=1, warmup_epochs=0, data_path=path)
        pretrain(job, source, tmp_path / name, device="cpu", workers=workers)
        rows[name] = rows_of(tmp_path / name)
    assert len({str(one) for one in rows.values()}) == 1, rows


@pytest.mark.parametrize("objective", OTHERS)
def test_what_is_exported_is_an_ordinary_backbone(objective: str, tmp_path: Path) -> None:
    final = pretrain(objective_job(objective, epochs=1, warmup_epochs=0), folder(), tmp_path / "run", device="cpu")
    weights = exported_weights(final)
    role = "student" if objective in {"mae", "distill"} else "teacher"
    assert weights.name == f"{role}.safetensors"
    assert not any("mask" in name or "head" in name for name in load_tensors(weights))
    backbone = load_backbone(f"run:{tmp_path / 'run'}")
    features = backbone.layers(photographs(32), [1, 2])[2]
    assert features.tokens.shape[1:] == (16, 128)
    assert features.tokens.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("objective", OTHERS)
def test_every_forward_pass_is_compiled(objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole backbones, or their blocks and the decoder's where an objective calls those."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch._dynamo.utils.counters.clear()
    pretrain(objective_job(objective, epochs=1, warmup_epochs=0, compile=True), folder(), tmp_path, device="cpu")
    written = read_json(tmp_path / "env.json")
    assert written["compiled_graphs"] > 0
    assert written["uncompiled"] is None
    assert torch._dynamo.utils.counters["graph_break"] == {}
