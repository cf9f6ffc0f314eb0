"""Where backbones come from; what every backbone must do is in tests/conformance/test_backbones.py."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.files import write_manifest
from dinoskip.models import Backbone, VitConfig, create_model, load_backbone, save_weights

IMAGES = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return create_model("vit_tiny_patch8", depth=2, img_size=16).eval()


def equal_to(backbone: Backbone, model: Any) -> bool:
    return torch.equal(backbone.layers(IMAGES, [2], norm="final")[2].tokens, model.forward_features(IMAGES)[:, 1:])


def prefixed(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def full_checkpoint(model: torch.nn.Module) -> dict[str, Any]:
    """The layout of facebookresearch/dino's main_dino.py: DDP student, plain teacher, heads, its command line."""
    head = {"head.mlp.0.weight": torch.zeros(4, 4), "head.last_layer.weight_v": torch.zeros(4, 4)}
    other = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    return {
        "student": prefixed(prefixed(other, "backbone.") | head, "module."),
        "teacher": prefixed(dict(model.state_dict()), "backbone.") | head,
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", lr=0.1),
        "dino_loss": {"center": torch.zeros(1, 4)},
    }


def saved(path: Path, content: object) -> str:
    torch.save(content, path)
    return f"dino:{path}"


def test_dino_full_checkpoint(tmp_path: Path, model: torch.nn.Module) -> None:
    spec = saved(tmp_path / "full.pth", full_checkpoint(model))
    backbone = load_backbone(spec)
    assert equal_to(backbone, model)
    assert (backbone.depth, backbone.dim, backbone.num_heads, backbone.patch_size) == (2, 192, 3, 8)
    assert not equal_to(load_backbone(spec, role="student"), model)


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.backbone.", "_orig_mod."])
def test_dino_plain_state(tmp_path: Path, model: torch.nn.Module, prefix: str) -> None:
    assert equal_to(load_backbone(saved(tmp_path / "w.pth", prefixed(dict(model.state_dict()), prefix))), model)


def test_dino_weights_that_do_not_fit(tmp_path: Path, model: torch.nn.Module) -> None:
    state = dict(model.state_dict())
    state["extra.head.weight"] = state.pop("norm.bias")
    with pytest.raises(WeightsError, match=r"29 of 30 do; 1 missing \(norm.bias\); 1 not in the model \(extra.head"):
        load_backbone(saved(tmp_path / "w.pth", state))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {"a": 1}, "epoch": 3}, "it holds: model, epoch"),
        ({"teacher": {}}, "it holds: teacher"),
        ([1, 2], "it holds: list"),
        ({"a": torch.zeros(1)}, "not a DINO ViT"),
    ],
)
def test_dino_files_that_are_something_else(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_backbone(saved(tmp_path / "w.pth", content))


def test_dino_of_an_unknown_width(tmp_path: Path) -> None:
    odd = timm.create_model("vit_tiny_patch16_224", embed_dim=96, depth=1, img_size=32, num_classes=0)
    with pytest.raises(WeightsError, match="width 96, patch 16, 5 positions"):
        load_backbone(saved(tmp_path / "w.pth", odd.state_dict()))


class Evil:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return (Path.touch, (self.sentinel,))


def test_dino_files_run_no_code(tmp_path: Path) -> None:
    spec = saved(tmp_path / "evil.pth", {"teacher": Evil(tmp_path / "sentinel")})
    with pytest.raises(WeightsError, match="refused"):
        load_backbone(spec)
    assert not (tmp_path / "sentinel").exists()


def test_garbage_and_absent_files(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("root:x:0\n" * 9)
    for spec in (f"dino:{tmp_path / 'text.pth'}", f"dino:{tmp_path / 'absent.pth'}", f"dino:{tmp_path}"):
        with pytest.raises(WeightsError) as caught:
            load_backbone(spec)
        assert "\n" not in str(caught.value)


def test_weights_and_runs(tmp_path: Path, model: torch.nn.Module) -> None:
    config = VitConfig(name="vit_tiny_patch8", depth=2, img_size=16)
    folder = tmp_path / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    save_weights(folder / "teacher.safetensors", model.state_dict(), config, {"role": "teacher"})
    save_weights(
        folder / "student.safetensors", {n: t + 1 for n, t in model.state_dict().items()}, config, {"role": "student"}
    )
    write_manifest(folder)
    run = load_backbone(f"run:{tmp_path}")
    weights = load_backbone(f"weights:{folder / 'teacher.safetensors'}")
    assert equal_to(run, model)
    assert run.info == {"role": "teacher"}
    assert run.weights_hash == weights.weights_hash == Backbone.from_model(model).weights_hash  # type: ignore[arg-type]
    assert load_backbone(f"run:{tmp_path}", role="student").info == {"role": "student"}
    with pytest.raises(ConfigError, match="role 'both' is none of teacher, student"):
        load_backbone(f"run:{tmp_path}", role="both")


def test_timm_options_and_seed() -> None:
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1,img_size=32"
    first = load_backbone(spec)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert load_backbone(spec).weights_hash == first.weights_hash
    assert torch.equal(torch.get_rng_state(), state)
    assert load_backbone(f"{spec},seed=1").weights_hash != first.weights_hash
    assert load_backbone("timm:vit_tiny_patch16_224", pretrained=False, depth=1, img_size=32).depth == 1
    assert (
        load_backbone("timm:vit_tiny_patch16_224", pretrained=False, depth=1, dtype=torch.float64).dtype
        == torch.float64
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vit_small", "not understood .*run:DIR, weights:FILE"),
        ("tim:vit_tiny_patch16_224", "did you mean timm:...?"),
        ("timm:", "not understood"),
        ("timm:vit_tiny_patch16_225", "did you mean vit_tiny_patch16_224?"),
        ("timm:vit_tiny_patch16_224,pretrained", "option 'pretrained' is not key=value"),
        ("timm:vit_tiny_patch16_224,pretrained=false,dpth=1", "unexpected keyword argument 'dpth'"),
        ("timm:vit_tiny_patch16_224.nope", "Invalid pretrained tag"),
        ("timm:resnet18,pretrained=false", "only timm's plain vision transformers"),
        ("timm:eva02_tiny_patch14_224,pretrained=false,depth=1", "a Eva is not supported"),
        ("timm:vit_tiny_r_s16_p8_224,pretrained=false,depth=1", "one convolution as patch embedding"),
    ],
)
def test_specs_that_cannot_be_used(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_backbone(spec)
    assert "\n" not in str(caught.value)


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **options: object) -> None:
        assert options["pretrained"] is True
        raise OSError("cannot reach the host\nmore lines")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(WeightsError) as caught:
        load_backbone("timm:vit_tiny_patch16_224")
    assert str(caught.value).startswith("timm:vit_tiny_patch16_224: pretrained weights cannot be loaded: cannot reach")
    assert "pretrained=false" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_facets_of_other_blocks_are_refused_but_outputs_are_not() -> None:
    backbone = load_backbone("timm:vit_small_patch16_18x2_224,pretrained=false,depth=1,img_size=32")
    images = torch.randn(1, 3, 32, 32)
    assert backbone.layers(images, [1])[1].tokens.shape == (1, 4, 384)
    with pytest.raises(ConfigError, match="facet key needs timm's pre-norm block"):
        backbone.layers(images, [1], facet="key")


def test_models_of_one_size_say_so() -> None:
    fixed = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=0)
    backbone = Backbone.from_model(fixed)
    assert backbone.layers(torch.randn(1, 3, 32, 32), [1])[1].grid == (2, 2)
    with pytest.raises(ValueError, match=r"built for 32×32 alone.*dynamic_img_size"):
        backbone.layers(torch.randn(1, 3, 32, 48), [1])


def test_no_final_norm() -> None:
    model = create_model("vit_tiny_patch8", depth=1, img_size=16, final_norm=False)
    with pytest.raises(ValueError, match="no final norm"):
        Backbone.from_model(model).layers(IMAGES, [1], norm="final")


def test_image_statistics() -> None:
    assert load_backbone("timm:vit_tiny_patch16_224,pretrained=false,depth=1").mean == (0.5, 0.5, 0.5)
    ours = Backbone.from_model(create_model("vit_tiny_patch8", depth=1))
    assert ours.mean == (0.485, 0.456, 0.406)
    assert ours.std == (0.229, 0.224, 0.225)


def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="model: a Linear is not supported"):
        Backbone.from_model(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
