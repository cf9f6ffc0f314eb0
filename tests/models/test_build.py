from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from dinoskip.errors import ConfigError
from dinoskip.models import VitConfig, create_model, list_models
from dinoskip.models.vit import embed
from dinoskip.settings.config import RawConfig, validate


@pytest.mark.parametrize("name", list_models())
def test_geometry_of_every_name_is_timms(name: str) -> None:
    """timm has no vit_mini, and not every patch size of tiny, small and base."""
    size, patch = name.split("_")[1], int(name.rpartition("patch")[2])
    shape = {"embed_dim": 128, "num_heads": 2} if size == "mini" else {}
    theirs = f"vit_{'tiny' if size == 'mini' else size}_patch{14 if size in ('huge', 'giant') else 16}_224"
    with torch.device("meta"):
        model = create_model(name, skip=False)
        known = timm.create_model(theirs, num_classes=0, patch_size=patch, **shape)
    assert {key: t.shape for key, t in model.state_dict().items()} == {
        key: t.shape for key, t in known.state_dict().items()
    }
    assert model.blocks[0].attn.num_heads == known.blocks[0].attn.num_heads
    assert VitConfig.model_validate({"name": name, "img_size": 14 * 16}).blocks == len(known.blocks)
    assert (model.patch_embed.proj.kernel_size, model.pos_embed.shape[1]) == ((patch, patch), (224 // patch) ** 2 + 1)
    assert isinstance(model.head, nn.Identity)
    assert all(m.eps == 1e-6 for m in model.modules() if isinstance(m, nn.LayerNorm))


def test_any_size_of_whole_patches_and_a_classifier_if_asked() -> None:
    model = create_model("vit_tiny_patch8", skip=False, depth=1, img_size=32, num_classes=5)
    assert model(torch.randn(1, 3, 24, 40)).shape == (1, 5)
    assert embed(model, torch.randn(2, 3, 16, 24)).shape == (2, 7, 192)


def test_unknown_name_and_bad_values() -> None:
    with pytest.raises(ConfigError, match=r"'vit_smal_patch16' is unknown \(did you mean vit_small_patch16\?"):
        create_model("vit_smal_patch16")
    with pytest.raises(ConfigError, match="img_size=225 is not a multiple of the patch size 16"):
        create_model("vit_small_patch16", img_size=225)
    for skip in ("none", 1, None):
        with pytest.raises(ConfigError, match=f"skip={skip!r} is none of"):
            create_model("vit_small_patch16", skip=skip)  # type: ignore[arg-type]


def test_config_errors_are_one_line_each() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(VitConfig, RawConfig({"name": "vit_smol_patch16", "depth": 0, "skp": True, "img_size": 1.5}))
    assert len(caught.value.problems) == 4
    assert "did you mean vit_small_patch16?" in str(caught.value)
    assert "did you mean skip?" in str(caught.value)
    with pytest.raises(ConfigError, match="img_size 100 is not a multiple of the patch size 8"):
        validate(VitConfig, RawConfig({"name": "vit_tiny_patch8", "img_size": 100}))
    assert validate(VitConfig, RawConfig({"skip": "mlp"})).skip == "mlp"
