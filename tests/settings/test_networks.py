"""Facts about backbones before they are opened, and their consequences for sizes and blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dinoskip.errors import ConfigError
from dinoskip.models import create_model
from dinoskip.models.build import from_config
from dinoskip.models.export import save_weights
from dinoskip.pipeline.stage import at_share, whole_patches
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.pipeline.variants import backbone_names
from dinoskip.settings.config import RawConfig
from dinoskip.settings.networks import Network, known_network
from dinoskip.settings.tasks import TASKS
from dinoskip.settings.vit_config import VitConfig

VIT14 = "timm:vit_small_patch14_dinov2,pretrained=false,depth=8"


def study(*backbones: str, **evaluate: Any) -> tuple[Any, Any]:
    tree = {
        "name": "s",
        "data": {"scenes": {"kind": "scenes", "images": 8, "size": 64}},
        "variants": {"model": [{"backbone": one, "label": f"n{at}"} for at, one in enumerate(backbones)]},
        "evaluate": evaluate,
    }
    return study_of(RawConfig(tree, {"": "here"}))


def test_a_name_a_header_a_description_and_options_tell(tmp_path: Path) -> None:
    assert known_network("timm:vit_small_patch14_dinov2") == Network(384, 14, 12)
    assert known_network("hub:facebookresearch/dinov2:dinov2_vitb14") == Network(768, 14, 12)
    assert known_network("timm:vit_tiny_patch16_224,depth=3,patch_size=8") == Network(192, 8, 3)
    model = create_model("vit_mini_patch8", depth=5, img_size=32)
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    found = known_network(str(tmp_path / "plain.safetensors"))
    assert found == Network(128, 8, 5)
    assert found is not None
    assert not found.guessed
    config = VitConfig(name="vit_tiny_patch8", depth=3, img_size=32)
    save_weights(tmp_path / "ours.safetensors", from_config(config).state_dict(), config, {})
    assert known_network(f"weights:{tmp_path / 'ours.safetensors'}") == Network(192, 8, 3)
    torch.save({"teacher": {f"module.{name}": value for name, value in model.state_dict().items()}}, tmp_path / "a.pth")
    torch.save(model.state_dict(), tmp_path / "b.pth", _use_new_zipfile_serialization=False)
    for name in ("a.pth", "b.pth", "a.pth,role=teacher"):
        assert known_network(str(tmp_path / name)) == Network(128, 8, 5)
    (tmp_path / "vit_small_patch16.pth").write_bytes(b"no weights")  # refused when it is opened
    assert known_network(str(tmp_path / "vit_small_patch16.pth")) == Network(384, 16, 12)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(
        json.dumps({"hidden_size": 384, "patch_size": 14, "num_hidden_layers": 12, "model_type": "dinov2"})
    )
    assert known_network(f"hf:{tmp_path / 'hf'}") == Network(384, 14, 12)
    levels = known_network("timm:swin_tiny_patch4_window7_224.ms_in1k")
    assert levels is not None
    assert (levels.patch, levels.depth) == (32, 4)
    for unknown in ("timm:no_such_model", "tv:resnet18", "absent.pth", "hf:a/b"):
        assert known_network(unknown) is None


@pytest.mark.parametrize("patch", [8, 14, 16])
def test_default_sizes_of_every_task_are_whole_patches(patch: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="dinoskip")
    backbone = f"timm:vit_small_patch{patch}_224,pretrained=false,depth=2"
    evaluate = {
        name: {"datasets": ["scenes"], **more}
        for name, more in {
            "objects": {"split": "val"}, "saliency": {"split": "val"}, "tokencut": {"split": "val"}, "knn": {},
            "retrieve": {}, "cluster": {"protocol": "stego"}, "probe": {}, "linear": {},
        }.items()
        if name in TASKS
    }  # fmt: skip
    found, variants = study(backbone, **evaluate)
    for node in build_nodes(found, variants):
        settings = node.settings
        record = getattr(settings, "record", None)
        if record is not None:
            assert all(size is None or size % patch == 0 for size in record.sizes(settings.section).values())
    said = [one.getMessage() for one in caplog.records if "whole patches" in one.getMessage()]
    assert bool(said) == (patch == 14)
    if patch == 14:
        assert "evaluate.retrieve.size: 518 for 512, in whole patches of 14: n0" in said


def test_a_size_that_was_chosen_is_refused_at_planning() -> None:
    with pytest.raises(ConfigError, match=r"500 is not a multiple of the patch size 14 \(try 504\)"):
        study(VIT14, probe={"datasets": ["scenes"], "size": 500})


def test_blocks_beyond_a_known_depth_are_refused_at_planning() -> None:
    with pytest.raises(ConfigError, match="12 is beyond the 8 blocks"):
        study("timm:vit_small_patch16_224,pretrained=false,depth=12", VIT14, blocks=[6, 12])


def test_blocks_of_the_deepest_are_read_at_the_same_share(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="dinoskip")
    deep = "timm:vit_small_patch16_224,pretrained=false,depth=12"
    knn = {"datasets": ["scenes"]}
    found, variants = study(deep, VIT14, blocks=[3, 6, 12], blocks_of="deepest", knn=knn)
    read = {node.variant: node.settings.blocks for node in build_nodes(found, variants) if node.stage == "features"}
    assert read == {"n0": [3, 6, 12], "n1": [2, 4, 8]}
    said = "n1 has 8 blocks: read at 2, 4, 8, the share of its depth that 3, 6, 12 are of 12"
    assert said in [one.getMessage() for one in caplog.records]
    with pytest.raises(ConfigError, match="13 is beyond the 12 blocks"):
        study(deep, VIT14, blocks=[13], blocks_of="deepest")


def test_shares_and_whole_patches() -> None:
    assert at_share([1, 6, 12], 8, 12) == [1, 4, 8]
    assert at_share([3, 6, 9, 12], 12, 12) == [3, 6, 9, 12]
    assert [whole_patches(size, 14) for size in (480, 512, 768, 3)] == [476, 518, 770, 14]


def test_unnamed_backbones_have_short_names_each_once() -> None:
    assert backbone_names(["timm:vit_small_patch16_224.dino", "hub:facebookresearch/dinov2:dinov2_vits14"]) == [
        "vit_small_patch16_224.dino", "dinov2_vits14",
    ]  # fmt: skip
    alike = [
        "timm:vit_tiny_patch16_224,pretrained=false,seed=0",
        "timm:vit_tiny_patch16_224,pretrained=false,seed=1",
        "timm:vit_tiny_patch16_224,file=some/where/mine.safetensors",
    ]
    names = backbone_names(alike)
    assert len(set(names)) == 3
    assert names[1] == "vit_tiny_patch16_224-pretrained_False-seed_1"
    assert names[2] == "vit_tiny_patch16_224-file_mine"
    assert len(set(backbone_names(["weights:a/x.safetensors", "weights:b/x.safetensors"]))) == 2
    assert backbone_names(["absent.pth"]) == ["absent"]


def test_keys_that_are_often_tried_are_answered() -> None:
    with pytest.raises(ConfigError, match=r"backbones: unknown key \(write variants: \{model"):
        study_of(RawConfig({"name": "s", "backbones": ["x"]}, {"": "here"}))
