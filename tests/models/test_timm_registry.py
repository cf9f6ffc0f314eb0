"""Weights of ours for timm's own loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.io.files import sha256_file
from dinoskip.models import GrayingConfig, create_model, load_backbone, save_timm_folder
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.export import load_weights
from dinoskip.models.from_file import as_ours
from tests.helpers.small_network import random_vit

CONFIGS: dict[str, dict[str, Any]] = {
    "residual": {"skip": True},
    "residual, its own positions": {"skip": True, "position_resize": "dino", "name": "vit_mini_patch8"},
    "skipless": {"skip": False, "position_resize": "dino"},
    "attention's skip": {"skip": "attention"},
    "grayed": {"skip": True, "graying": GrayingConfig(kind="dct", epsilon=0.7)},
}


def saved(folder: Path, **settings: Any) -> Any:
    model, config = random_vit(**settings)
    save_timm_folder(folder, model.state_dict(), config, {"epoch": 3})
    return model


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_timm_builds_what_was_saved(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = saved(tmp_path, **settings)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded(images), model(images))
    assert loaded.pretrained_cfg["mean"] == [0.485, 0.456, 0.406]
    other = torch.randn(1, 3, 96, 80)
    if settings["skip"] is not True:
        assert torch.equal(loaded(other), model(other)), "positions are resized alike"
    assert torch.equal(load_backbone(f"weights:{tmp_path / 'model.safetensors'}").model(images), model(images))


REGISTERED = "print(timm.is_model('skipless_vit_small_patch16_224'), timm.is_model('vit_small_patch16_224'))"


def test_a_skipless_network_is_never_taken_for_another(tmp_path: Path) -> None:
    """Without dinoskip, timm does not know the name, and says so; imported after timm, dinoskip makes it known."""
    saved(tmp_path, skip=False)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "skipless_vit_tiny_patch16_224"
    code = f"""
import timm
def create():
    return timm.create_model("local-dir:{tmp_path}", pretrained=True)
try:
    create()
except RuntimeError as error:
    print(error)
import dinoskip.models
print(type(create().blocks[0]).__module__)
{REGISTERED}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unknown = "Unknown model (skipless_vit_tiny_patch16_224)"
    assert done.stdout.splitlines() == [unknown, "dinoskip.models.vit", "True True"]


def test_dinoskip_may_be_imported_before_timm() -> None:
    code = f"import dinoskip.models, timm; {REGISTERED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True"


def test_the_package_alone_loads_neither_torch_nor_timm() -> None:
    code = "import sys, dinoskip; print([name for name in ('torch', 'timm', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_weights_of_ours_as_a_checkpoint_of_timm(tmp_path: Path) -> None:
    model = saved(tmp_path, skip=False)
    loaded = timm.create_model(
        "skipless_vit_tiny_patch16_224",
        num_classes=0,
        depth=2,
        img_size=64,
        checkpoint_path=str(tmp_path / "model.safetensors"),
    ).eval()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded(images), model(images))


def test_models_convert_to_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path / "a", skip=False)
    assert (
        main(["models", "convert", f"weights:{tmp_path / 'a' / 'model.safetensors'}", str(tmp_path / "b"), "-q"]) == 0
    )
    assert (tmp_path / "a" / "config.json").read_bytes() == (tmp_path / "b" / "config.json").read_bytes()
    _, _, info = load_weights(tmp_path / "b" / "model.safetensors")
    assert info["converted_sha256"] == sha256_file(tmp_path / "a" / "model.safetensors")
    assert {"converted", "converted_by", "converted_from"} < info.keys()
    assert torch.equal(timm.create_model(f"local-dir:{tmp_path / 'b'}", pretrained=True).pos_embed, model.pos_embed)


def test_a_network_of_other_image_statistics_is_not_made_one_of_ours() -> None:
    """A weights file is always read with ImageNet's, so that it would see other images than it was trained with."""
    model = create_model("vit_mini_patch8", depth=2, img_size=32)
    assert as_ours(LoadedModel(model), "file").name == "vit_mini_patch8"
    with pytest.raises(ConfigError, match=r"0\.5"):
        as_ours(LoadedModel(model, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)), "file")
