"""Statistics of images, and the rule by which positions are resized: as given, as files say, or said to be assumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.models import load_backbone
from dinoskip.models.image_statistics import CLIP, HALF, IMAGENET, three_numbers
from dinoskip.results.rows import normalisation_of

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "num_heads": 1, "depth": 1}
SIGLIP = {"class_token": False, "global_pool": "map", "num_classes": 0}
IMAGES = torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))


def vit(**options: Any) -> Any:
    torch.manual_seed(1)
    made = timm.create_model("vit_tiny_patch16_224", **(TINY | {"num_classes": 0} | options)).eval()
    with torch.no_grad():
        made.pos_embed.normal_()
    return made


def statistics(backbone: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return backbone.mean, backbone.std


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        (0.5, (0.5, 0.5, 0.5)),
        (0, (0.0, 0.0, 0.0)),
        (".5", (0.5, 0.5, 0.5)),
        ("0.1+0.2+0.3", (0.1, 0.2, 0.3)),
        ("0.1,0.2,0.3", (0.1, 0.2, 0.3)),
        ((0.1, 0.2, 0.3), (0.1, 0.2, 0.3)),
    ],
)
def test_one_number_or_three(given: Any, found: Any) -> None:
    assert three_numbers(given, "mean", "w.pth") == found


@pytest.mark.parametrize(
    ("name", "given"),
    [("mean", "red"), ("mean", "0.1+0.2"), ("mean", 123.7), ("mean", -0.1), ("std", 0), ("std", 58.4), ("std", "nan")],
)
def test_what_no_image_statistic_is(name: str, given: Any) -> None:
    with pytest.raises(ConfigError, match=f"w.pth: {name}="):
        three_numbers(given, name, "w.pth")


@pytest.mark.parametrize("spec", ["timm:vit_tiny_patch16_224,pretrained=false,depth=1", "tv:resnet18,pretrained=false"])
def test_any_spec_takes_them(spec: str) -> None:
    found = load_backbone(f"{spec},mean=0.5,std=0.1+0.2+0.3")
    assert statistics(found) == ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    assert load_backbone(spec, mean=[0.1, 0.2, 0.3]).mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("tag", ["augreg_in21k", "dino"])
def test_a_file_beside_its_description_is_read_as_its_folder(tmp_path: Path, tag: str) -> None:
    made = vit()
    save_file(made.state_dict(), tmp_path / "model.safetensors")
    described = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 0,
        "model_args": TINY,
        "pretrained_cfg": {
            "tag": tag,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "num_classes": 0,
            "input_size": [3, 32, 32],
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    bare, folder = load_backbone(tmp_path / "model.safetensors"), load_backbone(tmp_path)
    assert statistics(bare) == statistics(folder) == tuple(map(tuple, HALF))
    assert bare.positions == folder.positions == ("dino" if tag == "dino" else "timm")
    tokens = [found.layers(IMAGES, [1])[1].tokens for found in (bare, folder)]
    assert torch.equal(*tokens)
    asked = load_backbone(f"{tmp_path / 'model.safetensors'},pos_embed=bicubic,mean=0.4")
    assert (asked.positions, asked.mean) == ("bicubic", (0.4, 0.4, 0.4))


def test_a_bare_file_says_what_is_assumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(vit().state_dict(), tmp_path / "w.pth")
    torch.save(vit(num_classes=3).state_dict(), tmp_path / "classifier.pth")
    with caplog.at_level("INFO", logger="dinoskip"):
        bare, classifier = load_backbone(tmp_path / "w.pth"), load_backbone(tmp_path / "classifier.pth")
    lines = [record.getMessage() for record in caplog.records if "ViT of width" in record.getMessage()]
    assert lines == [bare.info["read_as"], classifier.info["read_as"]]
    assert (bare.positions, classifier.positions) == ("dino", "timm")
    assert statistics(bare) == tuple(map(tuple, IMAGENET))
    for line in lines:
        assert line.count("assumed") == 2
        assert normalisation_of(*IMAGENET) in line
        assert ",pos_embed=" in line
        assert ",mean=" in line


def trunk(made: Any) -> dict[str, torch.Tensor]:
    return {f"visual.trunk.{name}": tensor for name, tensor in made.state_dict().items()}


@pytest.mark.parametrize(
    ("options", "others", "known", "positions"),
    [
        (SIGLIP, ("logit_scale", "logit_bias"), HALF, "timm"),
        ({"class_token": False, "global_pool": "avg", "fc_norm": False}, ("logit_scale", "logit_bias"), HALF, "timm"),
        ({"class_token": False, "global_pool": "avg", "fc_norm": False}, ("logit_scale",), CLIP, "timm"),
        ({}, ("logit_scale",), CLIP, "timm"),
    ],
)
def test_openclips_networks_of_timm(
    tmp_path: Path, options: dict[str, Any], others: tuple[str, ...], known: Any, positions: str
) -> None:
    torch.save(trunk(vit(**options)) | {name: torch.zeros(()) for name in others}, tmp_path / "w.bin")
    found = load_backbone(tmp_path / "w.bin")
    assert statistics(found) == tuple(map(tuple, known))
    assert found.positions == positions
    (tmp_path / "open_clip_config.json").write_text('{"preprocess_cfg": {"mean": [0, 0, 0], "std": [1, 1, 1]}}')
    assert statistics(load_backbone(tmp_path / "w.bin")) == ((0.0,) * 3, (1.0,) * 3)


def test_mae_has_its_own_rule_where_its_decoder_tells(tmp_path: Path) -> None:
    torch.save(vit().state_dict() | {"decoder_embed.weight": torch.zeros(2, 2)}, tmp_path / "w.pth")
    assert load_backbone(tmp_path / "w.pth").positions == "bicubic"


def test_models_show_says_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(vit().state_dict(), tmp_path / "w.pth")
    assert main(["models", "show", f"{tmp_path / 'w.pth'},mean=0.4,std=0.3", "-q"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert normalisation_of([0.4] * 3, [0.3] * 3) in said
    assert "positions" in said
    assert "dino" in said
