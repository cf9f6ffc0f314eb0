"""ResNets, Swin, ConvNeXt and hybrid ViTs by a bare path or under a name, in any wrapping; what is not told is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from dinoskip.cli import main
from dinoskip.data import ScenesConfig
from dinoskip.errors import DinoskipError, WeightsError
from dinoskip.models import load_backbone
from dinoskip.results.rows import read_rows

State = dict[str, Tensor]
IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@cache
def network(name: str) -> Any:
    torch.manual_seed(0)
    library, _, name = name.partition(":")
    if library == "tv":
        made = torchvision.models.get_model(name, weights=None)
    else:
        made = timm.create_model(name, pretrained=False, num_classes=3)
    for module in made.modules():  # a LayerScale of 1e-6 would hide what blocks compute
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter_name in {"gamma", "layer_scale"}:
                nn.init.normal_(parameter)
    return made.eval()


def under(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def inside(wrapper: str, state: State) -> State:
    """Return the names that wrapping the children of children leaves: after the second part, or before the last."""
    parts = [(name.split("."), tensor) for name, tensor in state.items()]
    cuts = [min(2, len(split) - 1) for split, _ in parts]
    return {".".join([*p[:cut], wrapper, *p[cut:]]): t for (p, t), cut in zip(parts, cuts, strict=True)}


def moco(state: State) -> dict[str, Any]:
    """MoCo v1 and v2: the classifier is a projection, a queue beside it."""
    trunk = {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}
    head = {"fc.0.weight": torch.zeros(4, 4), "fc.2.weight": torch.zeros(2, 4), "fc.2.bias": torch.zeros(2)}
    return {
        "arch": "resnet",
        "state_dict": under("module.encoder_q.", trunk | head) | {"module.queue": torch.ones(2, 3)},
    }


def swav(state: State) -> State:
    trunk = {name: t for name, t in state.items() if not name.startswith("fc.") and "num_batches" not in name}
    return under(
        "module.", trunk | {"projection_head.0.weight": torch.zeros(2, 2), "prototypes.weight": torch.zeros(2, 2)}
    )


def numbered(state: State) -> dict[str, Any]:
    """Return a ResNet as Lightly saves it: a Sequential of its children."""
    numbers = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    split = {name: name.partition(".") for name in state if not name.startswith("fc.")}
    return {"state_dict": {f"backbone.{numbers[p[0]]}.{p[2]}": state[name] for name, p in split.items()}}


WRAPPINGS: dict[str, tuple[str, Callable[[State], Any]]] = {
    "plain": ("timm:resnet18", dict),
    "MoCo": ("tv:resnet18", moco),
    "SwAV": ("tv:resnet18", swav),
    "Lightly": ("tv:resnet18", numbered),
    "compiled inside": ("timm:resnet18", lambda state: {"model": inside("_orig_mod", under("backbone.", state))}),
    "data parallel inside": ("timm:resnet18", partial(inside, "module")),
    "EMA": ("timm:resnet18", lambda s: {"state_dict": {n: t + 1 for n, t in s.items()}, "state_dict_ema": s}),
    "ConvNeXt": (
        "timm:convnext_atto",
        lambda state: {"model": under("encoder.", inside("_fsdp_wrapped_module", state))},
    ),
    "hybrid": ("timm:vit_tiny_r_s16_p8_224", lambda s: under("module.", inside("_checkpoint_wrapped_module", s))),
}


def same(found: Any, made: Any) -> bool:
    tensors = dict(made.state_dict())
    held = {name: tensor for name, tensor in found.model.state_dict().items() if "num_batches" not in name}
    assert len(held) > 50
    return all(torch.equal(tensors[name], tensor) for name, tensor in held.items())


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_bare_path_and_a_name_find_the_network(tmp_path: Path, wrapping: str) -> None:
    spec, wrap = WRAPPINGS[wrapping]
    made = network(spec)
    file = tmp_path / "w.pth"
    torch.save(wrap(made.state_dict()), file)
    bare = load_backbone(file)
    assert same(bare, made)
    assert "\n" not in bare.info["read_as"]
    assert "assumed" in bare.info["read_as"]
    if wrapping != "Lightly":  # numbers are no names of the library
        named = load_backbone(f"{spec},file={file}")
        assert same(named, made)
        assert ("state_dict_ema" in named.info["read_as"]) == (wrapping == "EMA"), "the copy that is taken is said"


def test_features_are_the_networks(tmp_path: Path) -> None:
    made = network("timm:vit_tiny_r_s16_p8_224")
    torch.save(made.state_dict(), tmp_path / "w.pth")
    found = load_backbone(tmp_path / "w.pth")
    images = torch.randn(1, 3, 224, 224)
    tokens = made.forward_features(images)[:, 1:]
    last = made.norm(found.layers(images, [found.depth])[found.depth].tokens)
    torch.testing.assert_close(last, tokens, rtol=1e-5, atol=1e-5)
    resnet = network("tv:resnet18")
    torch.save(moco(resnet.state_dict()), tmp_path / "w.pth")
    found = load_backbone(f"tv:resnet18,file={tmp_path / 'w.pth'}")
    pooled = found.layers(IMAGES, [found.depth])[found.depth].cls
    trunk = nn.Sequential(*list(resnet.children())[:-1])
    torch.testing.assert_close(pooled, trunk(IMAGES).flatten(1), rtol=1e-5, atol=1e-5)


def test_copies_are_chosen_by_role_and_prefix(tmp_path: Path) -> None:
    state = network("tv:resnet18").state_dict()
    other = {name: tensor + 1 for name, tensor in state.items()}
    file = tmp_path / "w.pth"
    torch.save({"state_dict": under("module.encoder_q.", other) | under("module.encoder_k.", state)}, file)
    made = network("tv:resnet18")
    assert same(load_backbone(f"tv:resnet18,file={file}"), made)
    assert not same(load_backbone(f"tv:resnet18,file={file},role=student"), made)
    torch.save(under("left.", other) | under("right.", state), file)
    for spec in (str(file), f"timm:resnet18,file={file}"):
        with pytest.raises(WeightsError, match=r"prefix=left\."):
            load_backbone(spec)
        assert same(load_backbone(f"{spec},prefix=right."), made)


@pytest.mark.parametrize(
    ("wrap", "spec"),
    [
        (lambda state: {name: t for name, t in state.items() if name != "layer3.0.conv1.weight"}, "FILE"),
        (lambda state: state | {"layer3.0.se.fc1.weight": torch.zeros(4, 4)}, "FILE"),
        (lambda state: state | {"layer4.2.conv1.weight": torch.zeros(4, 4)}, "FILE"),
        (dict, "timm:resnet34,file=FILE"),
        (dict, "tv:swin_t,file=FILE"),
        (dict, "timm:vit_tiny_patch16_224,file=FILE"),
        (lambda state: {"state_dict": state}, "dino:FILE,grid=0x1"),
        (lambda _: {"stem.conv.weight": torch.zeros(2, 3, 3, 3)}, "FILE"),
        (lambda _: {"layers.0.blocks.0.attn.cpb_mlp.0.weight": torch.zeros(2, 2)}, "FILE"),
        (
            lambda state: under("base_model.model.", state | {"layer1.0.lora_A.default.weight": torch.ones(2, 2)}),
            "FILE",
        ),
        (lambda _: {"encoder.blocks.0.residual1.fn.q_proj.weight": torch.ones(2, 2)}, "FILE"),
        (lambda _: {"_fsdp_wrapped_module._flat_param": torch.ones(9)}, "FILE"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path, wrap: Callable[[State], Any], spec: str) -> None:
    file = tmp_path / "w.pth"
    torch.save(wrap(network("timm:resnet18").state_dict()), file)
    with pytest.raises(DinoskipError) as caught:
        load_backbone(spec.replace("FILE", str(file)))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code in (2, 3)
    assert "w.pth" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "<!DOCTYPE html><html>", "<?xml ?>", ""],
)
@pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
def test_what_a_download_left_instead_is_named(tmp_path: Path, text: str, file: str) -> None:
    (tmp_path / file).write_text(text)
    named = {"v": "Git LFS", "<": "web page", "": "empty"}[text[:1]]
    for spec in ("FILE", "weights:FILE", "timm:resnet18,file=FILE", "tv:resnet18,file=FILE"):
        with pytest.raises(WeightsError, match=named) as caught:
            load_backbone(spec.replace("FILE", str(tmp_path / file)))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("described", [{"architecture": "resnet18"}, {"model_type": "dinov2"}])
def test_a_pointer_in_a_folder_is_named(tmp_path: Path, described: dict[str, str]) -> None:
    if "model_type" in described:
        pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(WeightsError, match="Git LFS"):
        load_backbone(tmp_path)


TEN = {
    "timm:resnet18": moco,
    "timm:swin_tiny_patch4_window7_224": partial(inside, "_orig_mod"),
    "timm:convnext_atto": lambda state: {"state_dict": under("model.", state)},
    "timm:convnextv2_atto": partial(under, "module."),
    "timm:vit_tiny_r_s16_p8_224": lambda state: {"model": inside("_fsdp_wrapped_module", state)},
    "tv:swin_t": lambda state: {"teacher": under("backbone.", state)},
    "timm:efficientnet_b0": dict,
    "timm:regnety_002": lambda state: {"state_dict": under("encoder.", state)},
    "timm:mobilenetv3_small_050": partial(inside, "_checkpoint_wrapped_module"),
    "timm:pvt_v2_b0": partial(under, "module.backbone."),
}
"""The first six are told by their tensors; the others open under their names."""


@pytest.mark.parametrize("name", list(TEN)[6:])
def test_what_no_tensor_tells_asks_for_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    torch.save(TEN[name](network(name).state_dict()), tmp_path / "w.pth")
    assert main(["models", "show", str(tmp_path / "w.pth")]) == 3
    assert "timm:NAME,file=" in capsys.readouterr().err


@pytest.mark.slow
def test_look_on_files_of_other_architectures(tmp_path: Path) -> None:
    scenes, out, specs = ScenesConfig(images=4, size=64).generate(tmp_path / "scenes"), tmp_path / "out", list[str]()
    for number, (name, wrap) in enumerate(TEN.items()):
        file = tmp_path / f"network{number}.pth"
        torch.save(wrap(network(name).state_dict()), file)
        specs.append(str(file) if number < 6 else f"{name},file={file}")
    assert main(["look", *specs, "--data", str(scenes), "--images", "2", "--out", str(out), "-q"]) == 0
    rows = [row for path in out.rglob("rows.json") for row in read_rows(path) if not row.is_baseline]
    assert len({row.weights for row in rows if row.weights}) == len(TEN)
    assert all(row.normalisation for row in rows if row.weights)
    assert {row.positions for row in rows if row.weights} == {"own"}
