"""Epoch 0: the network before training, without a run."""

from __future__ import annotations

from pathlib import Path

import torch

from dinoskip.cli import main
from dinoskip.io.files import load_tensors
from dinoskip.models.export import load_weights
from dinoskip.pipeline.study import load_study
from dinoskip.settings.config import RawConfig, validate
from dinoskip.training.dino import build_networks
from dinoskip.training.objectives import PretrainJob
from tests.helpers.study import TINY


def test_epoch_0_is_the_teacher_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TINY)
    change = ("evaluate.epochs=[0]", "seed=3", f"output={tmp_path / 'out'}")
    variant = "skipless-adamw"
    assert main(["run", str(path), *change, "--until", "weights", "--only", "weights", "--variant", variant]) == 0
    assert not (tmp_path / "out/tiny/stages/pretrain").exists(), "nothing is trained for it"
    (found,) = (tmp_path / "out/tiny/stages/weights" / variant / "ep0").glob("*/weights.safetensors")
    study, variants = load_study(path, change)
    (model,) = (one.model for one in variants if one.name == variant)
    assert model is not None
    assert study.pretrain is not None
    recipe = study.pretrain.model_dump(mode="json", exclude={"dataset"})
    job = validate(PretrainJob, RawConfig({"seed": 3, "model": model.model_dump(mode="json"), "pretrain": recipe}))
    expected = build_networks(job, job.pretrain, torch.device("cpu"))[1].backbone.state_dict()
    state = load_tensors(found)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    assert load_weights(found)[2]["epoch"] == 0
