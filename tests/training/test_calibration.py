"""The first weights of a run whose initialisation is measured on its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dinoskip.data import ImageFolder
from dinoskip.errors import ConfigError, DataError
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.io.files import load_tensors
from dinoskip.models.export import save_weights
from dinoskip.runtime.distributed import World
from dinoskip.training import PretrainJob, pretrain
from dinoskip.training.calibration import before_and_after, begin_with, calibrated_model, centre_crops, spread
from dinoskip.training.dino import DINO
from dinoskip.training.objectives import OBJECTIVES
from tests.helpers.ranks import on_ranks
from tests.helpers.tiny import REQUIRED, make_images, tiny_job

MODEL: dict[str, Any] = {
    "name": "vit_tiny_patch16", "depth": 2, "img_size": 32, "skip": False, "init": {"name": "calibrated", "count": 6},
}  # fmt: skip


def job(init: dict[str, Any] | None = None, **pretrain_settings: Any) -> PretrainJob:
    """One epoch in which the teacher stays what it was at the start."""
    settings = tiny_job(epochs=1, warmup_epochs=0, momentum_teacher=1.0, **pretrain_settings).model_dump()
    model = {**MODEL, "init": {**MODEL["init"], **(init or {})}}
    return PretrainJob.model_validate({**settings, "model": model})


def teacher_of(run: Path) -> dict[str, Tensor]:
    return load_tensors(run / "teacher.safetensors")


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert set(one) == set(other)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_run_begins_with_the_weights_measured_on_its_images(tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images", 12))
    final = pretrain(job(), images, tmp_path / "run", device="cpu")
    measured = dict(calibrated_model(job().model, job().seed, images).state_dict())
    assert_equal(teacher_of(final), measured)
    assert not torch.equal(load_tensors(final / "student.safetensors")["cls_token"], measured["cls_token"])
    other = ImageFolder.open(make_images(tmp_path / "fewer", 5))
    assert not torch.equal(
        calibrated_model(job().model, 1, other).patch_embed.proj.bias, measured["patch_embed.proj.bias"]
    )


def test_a_run_begins_with_the_file_that_it_is_given(tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images", 12))
    config = ModelConfig.model_validate({**MODEL, "init": {"name": "skipless"}})
    save_weights(tmp_path / "start.safetensors", build_model(config, 7).state_dict(), config, {})
    given = job({"images": "scenes"})
    final = pretrain(given, images, tmp_path / "run", device="cpu", start=tmp_path / "start.safetensors")
    assert_equal(teacher_of(final), dict(build_model(config, 7).state_dict()))
    with pytest.raises(ConfigError, match=r"model.init.images: 'scenes' is a data set of a study"):
        pretrain(given, images, tmp_path / "other", device="cpu")


def test_every_objective_begins_with_them(tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images", 6))
    weights = dict(calibrated_model(job().model, 1, images).state_dict())
    own: dict[str, dict[str, Any]] = {
        "dino": {}, "ibot": {}, "mae": {"crop_size": 32, "positions": "learned"}, "patch_contrast": {"crop_size": 32},
        "distill": {"crop_size": 32, **REQUIRED["distill"]},
    }  # fmt: skip
    assert own.keys() >= OBJECTIVES.keys()
    for name in OBJECTIVES:
        settings = own[name]
        one = PretrainJob.model_validate({"model": MODEL, "pretrain": {"objective": name, **settings}})
        objective = one.pretrain.build(one, 3, torch.device("cpu"))
        begin_with(objective, lambda: weights)
        for network in objective.networks.values():
            assert_equal(dict(network.get_submodule("backbone").state_dict()), weights)


def begin(here: World, out: str) -> None:
    """Every rank has measured other images; rank 0's count."""
    objective = DINO(job(), job().pretrain, 3, here.device)
    images = ImageFolder.open(Path(out) / f"images {here.rank}")
    begin_with(objective, lambda: calibrated_model(job().model, 1, images).state_dict())
    torch.save(objective.networks["student"].get_submodule("backbone").state_dict(), f"{out}/{here.rank}.pt")


def test_all_ranks_begin_with_the_bits_of_one(tmp_path: Path) -> None:
    for rank in (0, 1):
        make_images(tmp_path / f"images {rank}", 6 + rank)
    on_ranks(2, tmp_path, begin, str(tmp_path))
    images = ImageFolder.open(tmp_path / "images 0")
    alone = dict(calibrated_model(job().model, 1, images).state_dict())
    for rank in (0, 1):
        assert_equal(torch.load(tmp_path / f"{rank}.pt"), alone)


def test_images_are_spread_and_cut_from_the_centre(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert spread(10, 5) == [0, 2, 4, 6, 8]
    assert spread(10, 5, between=True) == [1, 3, 5, 7, 9]
    assert spread(3, 8) == spread(3, 8, between=True) == [0, 1, 2]
    folder = make_images(tmp_path / "images", 3)
    images = ImageFolder.open(folder)
    (folder / "image 01.png").write_bytes(b"not an image")
    with caplog.at_level("WARNING", "dinoskip"):
        crops = centre_crops(images, [0, 1, 2], 32)
    assert crops.shape == (2, 3, 32, 32)
    assert "calibration: 1 images left out, such as" in caplog.text
    assert "image 01.png" in caplog.text
    with pytest.raises(DataError, match="none of 1 images can be read"):
        centre_crops(images, [1], 32)


def test_before_and_after_are_the_same_draw(tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images", 12))
    config = ModelConfig.model_validate(MODEL)
    told = before_and_after(config, 0, images)
    assert told["images"] == 8
    assert [row["block"] for row in told["before"]] == [row["block"] for row in told["after"]] == [1, 2]
    assert told["after"][1]["token_cosine"] < told["before"][1]["token_cosine"]
    alone = ImageFolder.open(make_images(tmp_path / "alone", 1))
    assert before_and_after(config, 0, alone) == {"images": 1, "before": [], "after": []}
