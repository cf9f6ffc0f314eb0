"""Our residual ViTs in transformers, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.models import Backbone, GrayingConfig, TemperatureConfig, load_backbone, save_weights
from dinoskip.models.transformers_layout import save_transformers_folder
from tests.helpers.small_network import random_vit

transformers = pytest.importorskip("transformers")


def test_auto_model_computes_the_same_and_it_comes_back(tmp_path: Path) -> None:
    model, config = random_vit(position_resize="dino")
    save_weights(tmp_path / "w.safetensors", model.state_dict(), config, {})
    command = ["models", "convert", f"weights:{tmp_path / 'w.safetensors'}", str(tmp_path / "hf")]
    assert main([*command, "--layout", "transformers", "-q"]) == 0
    names = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    assert {path.name for path in (tmp_path / "hf").iterdir()} == names
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "hf").iterdir()} == {0o644}
    loaded, report = transformers.AutoModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"], "what is missing would be random"
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        told = loaded.eval()(images, output_hidden_states=True)
        bare = transformers.AutoModel.from_pretrained(tmp_path / "hf", add_pooling_layer=False).eval()(images)
    ours = Backbone.from_model(model)
    theirs = load_backbone(f"hf:{tmp_path / 'hf'}")
    assert theirs.mean == ours.mean
    layers = ours.layers(images, [1, 2])
    for block in (1, 2):
        tokens = torch.cat([layers[block].cls[:, None], layers[block].tokens], 1)
        torch.testing.assert_close(told.hidden_states[block], tokens, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(told.last_hidden_state[:, 0], model(images), atol=1e-5, rtol=1e-5)
    assert torch.equal(told.pooler_output, told.last_hidden_state[:, 0])
    assert torch.equal(bare.last_hidden_state, told.last_hidden_state)
    assert bare.pooler_output is None
    for facet in ("out", "key", "query", "value"):
        for block, own in ours.layers(images, [1, 2], facet).items():
            other = theirs.layers(images, [block], facet)[block]
            torch.testing.assert_close(other.tokens, own.tokens, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"skip": False}, "skip=false"),
        ({"skip": "attention"}, "skip=attention"),
        ({"graying": GrayingConfig()}, "graying"),
        ({"temperature": TemperatureConfig()}, "temperature"),
    ],
)
def test_what_transformers_cannot_compute_is_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    model, config = random_vit(**settings)
    with pytest.raises(ConfigError, match=f"transformers has no ViT with {named} .write a folder for timm") as caught:
        save_transformers_folder(tmp_path / "hf", model.state_dict(), config)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "hf").exists()
