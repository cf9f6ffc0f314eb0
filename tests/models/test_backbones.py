"""Where backbones come from; what every backbone must do is in tests/conformance/test_backbones.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf
from torch.nn import functional as F

from dinoskip.cli import main
from dinoskip.errors import ConfigError, WeightsError
from dinoskip.features import FeatureStore
from dinoskip.files import write_manifest
from dinoskip.models import Backbone, VitConfig, create_model, load_backbone, save_weights
from dinoskip.models.adapter import dino_positions
from tests.helpers.dino_modules import Dino, DinoV2, DinoV3

IMAGES = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return create_model("vit_tiny_patch8", depth=2, img_size=16).eval()


def equal_to(backbone: Backbone, model: Any) -> bool:
    square = IMAGES[..., :16]  # the trained size, at which positions are the same by everyone's code
    return torch.equal(backbone.layers(square, [2], norm="final")[2].tokens, model.forward_features(square)[:, 1:])


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
    student = load_backbone(spec, role="student")
    assert not equal_to(student, model)
    assert load_backbone(f"{spec},role=student").weights_hash == student.weights_hash


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
        ("timm:beit_base_patch16_224,depth=1", "only timm's plain vision transformers"),
        ("timm:deit_tiny_distilled_patch16_224,pretrained=false,depth=1,pos_embed=dino", "a CLS token and the patches"),
        ("timm:vit_tiny_patch16_224,pretrained=false,depth=1,pos_embed=dion", "'dion' is none of timm, dino"),
        ("timm:vit_small_patch16_dinov3,pretrained=false,depth=1,pos_embed=dino", "by its own code"),
        ("weights:w.safetensors,role=student", "unknown options: role .options of weights: pos_embed"),
        ("dino:w.pth,rol=student", "unknown options: rol .options of dino: role, pos_embed"),
        ("hub:dino_vits16", "write hub:REPO:NAME"),
        ("hub:someone/else:net", "torch.hub runs the code of a repository, and 'someone/else' is not one of facebook"),
        ("hub:facebookresearch/dinoX:net", "is not one of"),
        ("hub:./nowhere:net", "no folder with a hubconf.py"),
        ("timm:vit_tiny_r_s16_p8_224,pretrained=false,depth=1", "one convolution as patch embedding"),
    ],
)
def test_specs_that_cannot_be_used(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_backbone(spec)
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


# --- positions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(14, 14), (30, 40), (40, 30), (7, 28), (5, 5), (15, 14), (60, 60)])
def test_positions_by_dinos_own_rule(grid: tuple[int, int]) -> None:
    network = Dino(patch_size=16, dim=24, img_size=224, depth=0)
    tokens, (h, w) = torch.zeros(1, grid[0] * grid[1] + 1, 24), grid
    expected = network.interpolate_pos_encoding(tokens, 16 * h, 16 * w)
    assert torch.equal(dino_positions(network.pos_embed, grid), expected)
    plain = network.pos_embed[:, 1:].reshape(1, 14, 14, 24).permute(0, 3, 1, 2)
    resized = F.interpolate(plain, size=grid, mode="bicubic", antialias=True).permute(0, 2, 3, 1).flatten(1, 2)
    assert torch.equal(expected[:, 1:], resized) == (grid == (14, 14))


def test_who_interpolates_can_be_chosen(tmp_path: Path, model: Any) -> None:
    file = saved(tmp_path / "w.pth", model.state_dict())
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    same = f"timm:vit_tiny_patch16_224,patch_size=8,depth=2,img_size=16,file={tmp_path / 'w.safetensors'}"
    tokens = {
        spec: load_backbone(spec).layers(IMAGES, [2])[2].tokens
        for spec in (file, f"{file},pos_embed=timm", same, f"{same},pos_embed=dino")
    }
    dino, dino_as_timm, by_timm, timm_as_dino = tokens.values()
    assert torch.equal(dino, timm_as_dino)
    assert torch.equal(by_timm, dino_as_timm)
    assert not torch.allclose(dino, by_timm, atol=1e-4)


# --- local files for timm ------------------------------------------------------------------------------


def test_timm_reads_the_authors_layouts(tmp_path: Path) -> None:
    """A file as DINOv2 publishes it (its names, its mask token) gives what the authors' network computes."""
    network = DinoV2(registers=4).eval()
    torch.nn.init.normal_(network.mask_token)
    torch.save(network.state_dict(), tmp_path / "dinov2.pth")
    shape = "depth=2,embed_dim=48,num_heads=3,img_size=56"
    backbone = load_backbone(f"timm:vit_small_patch14_reg4_dinov2,{shape},file={tmp_path / 'dinov2.pth'}")
    for size in ((56, 56), (28, 70)):  # with registers the authors resize as timm does
        x = torch.randn(1, 3, *size)
        with torch.no_grad():
            cls = network(x)
        torch.testing.assert_close(backbone.layers(x, [2], norm="final")[2].cls, cls, rtol=1e-5, atol=1e-5)


def test_timm_reads_dinov3_with_its_biases_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = DinoV3(untie=False, eps=1e-5).eval()
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    rest = f"depth=2,embed_dim=48,num_heads=3,file={tmp_path / 'w.pth'}"
    x = torch.randn(1, 3, 48, 80)
    with torch.no_grad():
        cls = network(x)
    backbone = load_backbone(f"timm:vit_small_patch16_dinov3_qkvb,{rest}")
    torch.testing.assert_close(backbone.layers(x, [2], norm="final")[2].cls, cls, rtol=1e-4, atol=1e-4)
    with pytest.raises(WeightsError, match=r"has no blocks.0.attn.qkv.bias, and it is not zero .use timm's NAME_qkvb"):
        load_backbone(f"timm:vit_small_patch16_dinov3,{rest}")
    for block in network.blocks:
        torch.nn.init.zeros_(block.attn.qkv.bias)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    with torch.no_grad():
        cls = network(x)
    backbone = load_backbone(f"timm:vit_small_patch16_dinov3,{rest}")
    torch.testing.assert_close(backbone.layers(x, [2], norm="final")[2].cls, cls, rtol=1e-4, atol=1e-4)
    assert capsys.readouterr().out == ""


def test_timm_reads_deit3s_layout(tmp_path: Path) -> None:
    """LayerScale as DeiT III publishes it, gamma_1 for ls1.gamma."""
    network = timm.create_model("deit3_small_patch16_224", depth=1, img_size=32, num_classes=3)
    state = {
        n.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t for n, t in network.state_dict().items()
    }
    torch.save({"model": state}, tmp_path / "w.pth")
    loaded = load_backbone(f"timm:deit3_small_patch16_224,depth=1,img_size=32,file={tmp_path / 'w.pth'}")
    own = network.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in loaded.model.state_dict().items())


def test_timm_files_load_whole_or_not_at_all(tmp_path: Path) -> None:
    spec = "timm:vit_tiny_patch16_224,depth=1,img_size=32"
    state = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=5).state_dict()
    for path in (tmp_path / "w.pth", tmp_path / "w.safetensors"):
        save_file(state, path) if path.suffix == ".safetensors" else torch.save({"model": state}, path)
        backbone = load_backbone(f"{spec},file={path}")
        assert torch.equal(backbone.model.norm.weight, state["norm.weight"])
    state["surplus"] = state.pop("norm.bias")
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"17 of 18 do; 1 missing \(norm.bias\); 1 not in the model \(surplus\)"):
        load_backbone(f"{spec},file={tmp_path / 'w.pth'}")
    for content in ([1, 2], {"a": 1}, {"a": torch.zeros(2)}, Evil(tmp_path / "sentinel")):
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(WeightsError) as caught:
            load_backbone(f"{spec},file={tmp_path / 'w.pth'}")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "sentinel").exists()


def test_timm_downloads_load_whole_or_not_at_all(tmp_path: Path) -> None:
    """The way of downloaded weights, from a folder as timm lays it out for the Hugging Face hub: with a classifier."""
    network = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=5)
    save_for_hf(network, tmp_path, model_args={"depth": 1, "img_size": 32}, safe_serialization=True)
    backbone = load_backbone(f"timm:local-dir:{tmp_path}")
    own = network.state_dict()
    assert own.keys() - backbone.model.state_dict().keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(tensor, own[name]) for name, tensor in backbone.model.state_dict().items())
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    state["surplus"] = state.pop("norm.bias")
    save_file(state, file)
    with pytest.raises(WeightsError, match=r"1 missing \(norm.bias\); 1 not in the model \(surplus\)"):
        load_backbone(f"timm:local-dir:{tmp_path}")


# --- torch.hub -----------------------------------------------------------------------------------------


def repository(folder: Path, body: str) -> Path:
    folder.mkdir()
    (folder / "hubconf.py").write_text(f"import torch\nfrom tests.helpers.dino_modules import Dino\n\n{body}\n")
    return folder


def test_hub_runs_no_code_that_was_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that looks like owner/name is not taken for a path; untrusted names fetch nothing."""
    (tmp_path / "someone").mkdir()
    repository(tmp_path / "someone" / "net", "raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, "load", lambda *args, **kwargs: pytest.fail("torch.hub was called"))
    with pytest.raises(ConfigError, match=r"name its folder: hub:\./FOLDER:NAME"):
        load_backbone("hub:someone/net:vit")


def test_hub_of_a_folder(tmp_path: Path) -> None:
    folder = repository(
        tmp_path / "repo",
        "def vit(pretrained=True, depth=1):\n    return Dino(depth=depth)\n"
        "def resnet(pretrained=True):\n    return torch.nn.Linear(2, 2)\n"
        "def nothing(pretrained=True):\n    return None\n",
    )
    random = load_backbone(f"hub:{folder}:vit,pretrained=false,depth=2")
    assert random.depth == 2
    assert load_backbone(f"hub:{folder}:vit,pretrained=false,depth=2").weights_hash == random.weights_hash
    assert load_backbone(f"hub:{folder}:vit,pretrained=false,depth=2,seed=1").weights_hash != random.weights_hash
    state = {name: tensor for name, tensor in random.model.state_dict().items() if name != "norm.bias"}
    torch.save({"teacher": state}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"1 missing \(norm.bias\)"):
        load_backbone(f"hub:{folder}:vit,depth=2,file={tmp_path / 'w.pth'}")
    for name, message in (("resnet", "a Linear is not supported"), ("nothing", "a NoneType, not a network")):
        with pytest.raises(ConfigError, match=message):
            load_backbone(f"hub:{folder}:{name},pretrained=false")
    with pytest.raises(ConfigError, match="cannot build it: Cannot find callable absent"):
        load_backbone(f"hub:{folder}:absent,pretrained=false")


# --- transformers --------------------------------------------------------------------------------------

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
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "swin"}))
    with pytest.raises(ConfigError, match=r"models of type 'swin' are not supported .supported: vit, deit"):
        load_backbone(f"hf:{tmp_path}")


def test_hf_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs the package transformers .pip install 'dinoskip\[hub\]'"):
        load_backbone("hf:facebook/dinov2-small")


# --- no network ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "way_out"),
    [
        ("timm:vit_tiny_patch16_224", "timm:vit_tiny_patch16_224,file=FILE"),
        ("timm:hf-hub:timm/vit_tiny_patch16_224", "timm:hf-hub:timm/vit_tiny_patch16_224,file=FILE"),
        ("hf:facebook/dinov2-small", "hf:./FOLDER"),
        ("hub:facebookresearch/dino:dino_vits16", "hub:./CLONE:dino_vits16,file=FILE.pth"),
    ],
)
def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, way_out: str) -> None:
    """The libraries' own clients, told to stay offline or cut off, with empty caches: one line that shows a way out."""
    if spec.startswith("hf:"):
        pytest.importorskip("transformers")
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def cut(*args: object, **kwargs: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "urlopen", cut)
    with pytest.raises(WeightsError) as caught:
        load_backbone(spec)
    assert str(caught.value).startswith(f"{spec}: ")
    assert "needs network" in str(caught.value)
    assert way_out in str(caught.value)
    assert "\n" not in str(caught.value)


# --- end to end ----------------------------------------------------------------------------------------


def test_dinos_vit_small_end_to_end_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export and TokenCut of a few images with the very network that papers evaluate, at random weights."""
    spec = "timm:vit_small_patch16_224.dino,pretrained=False"
    voc, out = tmp_path / "voc", tmp_path / "features"
    assert main(["data", "scenes", str(voc), "images=4", "size=64", "val_fraction=0.5", "-q"]) == 0
    images = voc / "VOC2012" / "JPEGImages"
    export = ["features", "export", "--backbone", spec, "--images", str(images), "--out", str(out)]
    assert main([*export, "--blocks", "1,12", "--facet", "key", "--mode", "native", "-q"]) == 0
    store = FeatureStore.open(out)
    assert (len(store.ids), store.tokens(12, 0).shape) == (4, (16, 384))
    capsys.readouterr()
    cut = ["tokencut", "--backbone", spec, "--data", str(voc), "--out", str(tmp_path / "cut"), "--blocks", "12"]
    assert main([*cut, "--json", "-q"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["block"] == "12"]
    assert [(row["metric"], row["n"]) for row in rows] == [("CorLoc", 4)]
    assert 0 <= rows[0]["value"] <= 100
