"""ViTs of Hugging Face transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.models import load_backbone

SHAPE = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}


VISION = SHAPE | {"image_size": 32, "patch_size": 16}


def published(folder: Path, kind: str, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind.split('For')[0].removesuffix('Model')}Config")(**options)
    network = getattr(transformers, kind)(config).eval()
    network.save_pretrained(folder)
    return network


@pytest.mark.parametrize(
    ("kind", "part", "options"),
    [
        ("ViTForImageClassification", "vit", VISION),
        ("ViTForMaskedImageModeling", "vit", VISION),
        ("Dinov2ForImageClassification", "dinov2", {k: v for k, v in VISION.items() if k != "intermediate_size"}),
        ("ViTMAEForPreTraining", "vit", VISION),
        ("CLIPModel", "vision_model", {"vision_config": VISION, "text_config": SHAPE | {"vocab_size": 64}}),
        ("SiglipModel", "vision_model", {"vision_config": VISION, "text_config": SHAPE | {"vocab_size": 64}}),
    ],
)
def test_hf_image_parts_of_larger_models(tmp_path: Path, kind: str, part: str, options: dict) -> None:
    network = published(tmp_path, kind, **options).get_submodule(part)
    own, loaded = network.state_dict(), load_backbone(f"hf:{tmp_path}").model.state_dict()
    assert loaded
    assert all(torch.equal(tensor, own[name]) for name, tensor in loaded.items())
    assert all(name.startswith("pooler.") or name.endswith("mask_token") for name in own.keys() - loaded.keys())


def test_hf_weights_that_do_not_fit(tmp_path: Path) -> None:
    published(tmp_path, "ViTModel", **VISION)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    state["surplus.weight"] = state.pop("layernorm.bias")
    state["layernorm.weight"] = torch.ones(3)
    save_file(state, file, {"format": "pt"})
    expected = (
        r"1 missing \(layernorm.bias\); 1 not in the model \(surplus.weight\); 1 of another shape \(layernorm.weight\)"
    )
    with pytest.raises(WeightsError, match=expected):
        load_backbone(f"hf:{tmp_path}")


def test_hf_opens_safetensors_alone_and_fetches_no_code(tmp_path: Path) -> None:
    network = published(tmp_path, "ViTModel", **VISION)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    assert load_backbone(f"hf:{tmp_path}").depth == 1
    (tmp_path / "model.safetensors").unlink()
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"cannot be loaded: .*safetensors") as caught:
        load_backbone(f"hf:{tmp_path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"num_hidden_layers": 10**6}, {"hidden_size": 2**31}, {"image_size": [224, 10**7]}])
def test_hf_descriptions_of_impossible_sizes(tmp_path: Path, change: dict) -> None:
    """Refused before the network is built, which would take all memory and time there is."""
    published(tmp_path, "ViTModel", **VISION)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(WeightsError, match=rf"config.json: {next(iter(change))} .* is not a whole number up to"):
        load_backbone(f"hf:{tmp_path}")


def test_hf_statistics_options_and_other_types(tmp_path: Path) -> None:
    published(tmp_path, "ViTModel", **VISION)
    assert load_backbone(f"hf:{tmp_path}").mean == (0.5, 0.5, 0.5)
    statistics = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(statistics))
    backbone = load_backbone(f"hf:{tmp_path},pretrained=false")
    assert (backbone.mean, backbone.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert backbone.weights_hash == load_backbone(f"hf:{tmp_path},pretrained=false").weights_hash
    with pytest.raises(ConfigError, match="unknown options: depth"):
        load_backbone(f"hf:{tmp_path},depth=1")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ConfigError, match=r"models of type 'bert' are not supported .supported: vit, deit"):
        load_backbone(f"hf:{tmp_path}")


def test_hf_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs the package transformers .pip install 'dinoskip\[hub\]'"):
        load_backbone("hf:facebook/dinov2-small")


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("SwinModel", {"embed_dim": 24, "depths": [1, 1], "num_heads": [1, 2], "image_size": 64}),
        ("ConvNextModel", {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}),
        ("DINOv3ConvNextModel", {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}),
    ],
)
def test_stages_of_swin_and_convnext(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, kind)(getattr(transformers, kind.replace("Model", "Config"))(**config)).eval()
    model.save_pretrained(tmp_path)
    backbone = load_backbone(f"hf:{tmp_path}")
    images = torch.randn(1, 3, 64, 64)
    read = backbone.layers(images, backbone.numbers)
    with torch.no_grad():
        last = model(images, output_hidden_states=True).hidden_states[-1]
    plain = last if last.ndim == 3 else last.flatten(2).mT
    assert float((read[backbone.depth].tokens - plain).abs().max()) < 1e-6
    strides = [level.stride for level in backbone.reader.levels]
    assert strides == [4 * 2**at for at in range(backbone.depth)]
