"""Specs of backbones, and what they load."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from dinoskip.cli import main
from dinoskip.errors import ConfigError, WeightsError
from dinoskip.features import FeatureStore
from dinoskip.io.files import write_manifest
from dinoskip.models import Backbone, VitConfig, load_backbone, save_weights
from tests.helpers.small_network import equal_to


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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vit_small", "not understood .*the path of a checkpoint, run:DIR, weights:FILE"),
        ("tim:vit_tiny_patch16_224", "did you mean timm:...?"),
        ("timm:", "not understood"),
        ("timm:vit_tiny_patch16_225", "did you mean vit_tiny_patch16_224?"),
        ("timm:vit_tiny_patch16_224,pretrained", "option 'pretrained' is not key=value"),
        ("timm:vit_tiny_patch16_224,pretrained=false,dpth=1", "unexpected keyword argument 'dpth'"),
        ("timm:vit_tiny_patch16_224.nope", "Invalid pretrained tag"),
        ("timm:crossvit_tiny_240,pretrained=false", "not a whole number of pixels each"),
        ("timm:resnet18,pretrained=false,pos_embed=dino", "pos_embed is of plain ViTs"),
        ("tv:resnet81", "torchvision has no classifier 'resnet81'"),
        ("tv:resnet18,depth=3", "torchvision cannot build it"),
        ("timm:deit_tiny_distilled_patch16_224,pretrained=false,depth=1,pos_embed=dino", "a CLS token and the patches"),
        ("timm:vit_tiny_patch16_224,pretrained=false,depth=1,pos_embed=dion", "'dion' is none of timm, dino"),
        ("timm:vit_small_patch16_dinov3,pretrained=false,depth=1,pos_embed=dino", "by its own code"),
        ("weights:w.safetensors,role=student", "unknown options: role .options of weights: grid, mean, pos_embed, std"),
        (
            "dino:w.pth,rol=student",
            "unknown options: rol .options of dino: act, grid, heads, mean, pos_embed",
        ),
        ("hub:dino_vits16", "write hub:REPO:NAME"),
        ("hub:someone/else:net", "torch.hub runs the code of a repository, and 'someone/else' is not one of facebook"),
        ("hub:facebookresearch/dinoX:net", "is not one of"),
        ("hub:./nowhere:net", "no folder with a hubconf.py"),
    ],
)
def test_specs_that_cannot_be_used(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_backbone(spec)
    assert "\n" not in str(caught.value)


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


def test_dinos_vit_small_end_to_end_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export and TokenCut of a few images with the very network that papers evaluate, at random weights."""
    spec = "timm:vit_small_patch16_224.dino,pretrained=False"
    voc, out = tmp_path / "voc", tmp_path / "features"
    assert main(["data", "scenes", str(voc), "images=4", "size=64", "val_fraction=0.5", "-q"]) == 0
    images = voc / "VOC2012" / "JPEGImages"
    export = ["features", "export", spec, "--data", str(images), "--out", str(out)]
    assert main([*export, "--blocks", "1,12", "--facet", "key", "--mode", "native", "-q"]) == 0
    store = FeatureStore.open(out)
    assert (len(store.ids), store.tokens(12, 0).shape) == (4, (16, 384))
    capsys.readouterr()
    cut = ["eval", "tokencut", spec, "--data", str(voc), "--out", str(tmp_path / "cut"), "--blocks", "12"]
    assert main([*cut, "--json", "-q"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["block"] == "12"]
    assert [(row["metric"], row["n"]) for row in rows] == [("CorLoc", 4)]
    assert 0 <= rows[0]["value"] <= 100
