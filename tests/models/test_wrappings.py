"""Checkpoints of strangers by their bare path: the same healthy network in all usual wrappings opens and is right."""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import LayerNorm, SwiGLUPacked
from torch import Tensor, nn

from dinoskip.errors import DinoskipError, WeightsError
from dinoskip.models import load_backbone

State = dict[str, Tensor]
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 128, "num_heads": 2, "depth": 2, "num_classes": 0}


def network(**options: Any) -> Any:
    torch.manual_seed(1)
    made = timm.create_model("vit_tiny_patch16_224", **(TINY | options)).eval()
    with torch.no_grad():  # nothing is at its start, where a tensor in the wrong place could stay unseen
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def under(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def renamed(state: State, *pairs: tuple[str, str]) -> State:
    out = {}
    for name, tensor in state.items():
        for old, new in pairs:
            name = name.replace(old, new)
        out[name] = tensor
    return out


def noise(state: State) -> State:
    return {name: tensor + 1 for name, tensor in state.items()}


def clip_names(state: State) -> State:
    pairs = (
        ("patch_embed.proj", "conv1"),
        ("norm_pre", "ln_pre"),
        ("blocks.", "transformer.resblocks."),
        ("norm1", "ln_1"),
        ("norm2", "ln_2"),
        ("attn.qkv.", "attn.in_proj_"),
        ("attn.proj", "attn.out_proj"),
        ("mlp.fc1", "mlp.c_fc"),
        ("mlp.fc2", "mlp.c_proj"),
    )
    named = renamed({name: t for name, t in state.items() if not name.startswith("norm.")}, *pairs)
    named |= {f"ln_post.{kind}": state[f"norm.{kind}"] for kind in ("weight", "bias")}
    named["class_embedding"] = named.pop("cls_token").flatten()
    named["positional_embedding"] = named.pop("pos_embed")[0]
    return named | {"proj": torch.zeros(128, 8)}


def dinov2_names(state: State) -> State:
    """Registers apart from positions, of which the CLS token has one."""
    named = dict(state)
    first = torch.full((1, 1, 128), 0.3)
    named["register_tokens"] = named.pop("reg_token")
    named["pos_embed"] = torch.cat((first, named["pos_embed"]), dim=1)
    named["cls_token"] = named["cls_token"] - first
    return named | {"mask_token": torch.zeros(1, 128)}


def dino_checkpoint(state: State) -> dict[str, Any]:
    head = {"head.mlp.0.weight": torch.zeros(4, 4)}
    return {
        "student": under("module.", under("backbone.", noise(state)) | head),
        "teacher": under("backbone.", state) | head,
        "args": argparse.Namespace(arch="vit_small"),
        "epoch": 3,
    }


def settings() -> object:
    """Return an object of a class of a settings library that is not installed where the file is read."""
    module = types.ModuleType("omegaconf")
    kind: Any = type("DictConfig", (), {"__module__": module.__name__})
    module.DictConfig = kind  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    made = kind()
    made.lr = 0.1
    return made


def lightning(state: State) -> dict[str, Any]:
    """Return a module as Lightning saves it, with its settings and the optimizer's state beside it."""
    return {
        "state_dict": under("model.", state) | {"criterion.weight": torch.zeros(3)},
        "hyper_parameters": settings(),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}}],
        "pytorch-lightning_version": "2.5.0",
    }


SWIGLU = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 5.0, "init_values": 1e-5}
REGISTERS = {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5}
CLIP = {"pre_norm": True, "norm_layer": partial(LayerNorm, eps=1e-5)}
MEAN = {"class_token": False, "global_pool": "avg", "fc_norm": False}
DINOV2 = (("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3"), ("blocks.", "blocks.0."))
WRAPPINGS: dict[str, tuple[dict[str, Any], Callable[[State], Any]]] = {
    "plain": ({}, dict),
    "DINO checkpoint": ({}, dino_checkpoint),
    "DataParallel": ({}, partial(under, "module.")),
    "torch.compile": ({}, partial(under, "_orig_mod.")),
    "state_dict": ({}, lambda state: {"state_dict": state, "epoch": 1}),
    "model, module.": ({}, lambda state: {"model": under("module.", state), "scaler": {"scale": torch.ones(1)}}),
    "Lightning": ({}, lightning),
    "DINOv2 registers": (REGISTERS, dinov2_names),
    "OpenCLIP": (CLIP, lambda state: under("visual.", clip_names(state)) | {"logit_scale": torch.ones(())}),
    "MAE with decoder": ({}, lambda state: {"model": state | {"decoder_blocks.0.norm1.weight": torch.zeros(4)}}),
    "DINOv2 in training": (SWIGLU, lambda state: {"model": under("teacher.backbone.", renamed(state, *DINOV2))}),
    "MoCo v3": (
        {},
        lambda state: {
            "state_dict": under("module.base_encoder.", noise(state)) | under("module.momentum_encoder.", state)
        },
    ),
    "timm with EMA": ({}, lambda state: {"state_dict": noise(state), "state_dict_ema": state}),
    "I-JEPA": (MEAN, lambda state: {"encoder": noise(state), "target_encoder": under("module.", state)}),
    "q/k norm": ({"qk_norm": True}, dict),
    "DeiT's distillation": ({"reg_tokens": 1}, lambda state: {"model": renamed(state, ("reg_token", "dist_token"))}),
}


def checked(spec: str, made: Any) -> None:
    found = load_backbone(spec)
    ours = found.layers(IMAGES, [2], norm="final")[2]
    tokens = made.forward_features(IMAGES)
    torch.testing.assert_close(ours.tokens, tokens[:, made.num_prefix_tokens :], rtol=1e-5, atol=1e-5)
    if made.has_class_token:
        torch.testing.assert_close(ours.cls, tokens[:, 0], rtol=1e-5, atol=1e-5)
    assert (found.depth, found.dim, found.num_heads, found.patch_size) == (2, 128, 2, 8)


@pytest.mark.parametrize("name", WRAPPINGS)
def test_a_bare_path_opens(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    options, wrap = WRAPPINGS[name]
    made = network(**options)
    path = tmp_path / "vits8.pth"
    torch.save(wrap(made.state_dict()), path)
    sys.modules.pop("omegaconf", None)
    with caplog.at_level("INFO", logger="dinoskip"):
        checked(str(path), made)
    [line] = [record.getMessage() for record in caplog.records if "ViT of width" in record.getMessage()]
    assert "2 blocks, 2 heads" in line
    assert "\n" not in line
    checked(f"dino:{path}", made)


def test_safetensors_of_others(tmp_path: Path) -> None:
    made = network()
    save_file(made.state_dict(), tmp_path / "w.safetensors")
    checked(str(tmp_path / "w.safetensors"), made)
    checked(f"weights:{tmp_path / 'w.safetensors'}", made)


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.backbone."])
def test_a_named_architecture_takes_wrapped_files(tmp_path: Path, prefix: str) -> None:
    made = network()
    torch.save({"state_dict": under(prefix, made.state_dict())}, tmp_path / "w.pth")
    options = "img_size=16,patch_size=8,embed_dim=128,num_heads=2,depth=2"
    checked(f"timm:vit_tiny_patch16_224,file={tmp_path / 'w.pth'},{options}", made)


def test_students_are_taken_when_asked_for(tmp_path: Path) -> None:
    made = network()
    state = made.state_dict()
    torch.save({"state_dict": state, "state_dict_ema": noise(state)}, tmp_path / "w.pth")
    checked(f"{tmp_path / 'w.pth'},role=student", made)


def test_moments_of_gradients_are_no_network(tmp_path: Path) -> None:
    state = network().state_dict()
    torch.save({"optimizer": {"exp_avg": noise(state)}}, tmp_path / "moments.pth")
    with pytest.raises(WeightsError):
        load_backbone(tmp_path / "moments.pth")
    torch.save({"optimizer": {"exp_avg": noise(state)}, "model": state}, tmp_path / "both.pth")
    checked(str(tmp_path / "both.pth"), network())


def test_several_networks_are_told_apart(tmp_path: Path) -> None:
    made = network()
    path = tmp_path / "two.pth"
    torch.save(under("left.", made.state_dict()) | under("right.", noise(made.state_dict())), path)
    with pytest.raises(WeightsError, match=r"2 ViTs in it: left\., right\. .*,prefix=left\."):
        load_backbone(str(path))
    checked(f"{path},prefix=left.", made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks.1.mlp.fc2.bias": None}, r"1 missing \(blocks.1.mlp.fc2.bias\)"),
        ({"pos_embed": None}, "no pos_embed"),
        ({"pos_embed": torch.zeros(1, 8, 128)}, "8 positions are no square"),
        ({"blocks.7.norm1.weight": torch.zeros(128)}, "not numbered from 0 without gaps"),
        ({"adapter.weight": torch.zeros(3)}, r"1 not in the model \(adapter.weight\)"),
        ({"norm.weight": torch.full((128,), torch.nan)}, "not finite"),
        ({"patch_embed.proj.weight": torch.zeros(128, 1, 8, 8)}, "RGB images with square patches"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    state = {name: tensor for name, tensor in (network().state_dict() | change).items() if tensor is not None}
    torch.save({"model": under("module.", state)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=message) as caught:
        load_backbone(str(tmp_path / "w.pth"))
    assert "\n" not in str(caught.value)


def test_heads_that_nothing_tells(tmp_path: Path) -> None:
    made = network(embed_dim=96, num_heads=3)
    torch.save(made.state_dict(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"width 96 is no multiple of 64: how many heads\?"):
        load_backbone(str(tmp_path / "w.pth"))
    found = load_backbone(f"{tmp_path / 'w.pth'},heads=3")
    tokens = made.forward_features(IMAGES)[:, 1:]
    torch.testing.assert_close(found.layers(IMAGES, [2], norm="final")[2].tokens, tokens, rtol=1e-5, atol=1e-5)


def test_transformers_names_need_their_configuration(tmp_path: Path) -> None:
    torch.save({"embeddings.patch_embeddings.projection.weight": torch.zeros(128, 3, 8, 8)}, tmp_path / "w.bin")
    with pytest.raises(WeightsError, match=r"write hf:\./FOLDER"):
        load_backbone(str(tmp_path / "w.bin"))


def test_dinov3_is_timms_network_of_its_width(tmp_path: Path) -> None:
    made = timm.create_model("vit_tiny_patch16_dinov3_qkvb", depth=2, num_classes=0).eval()
    state = renamed(made.state_dict(), ("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"))
    state = renamed(state, ("gamma_2", "ls2.gamma"))
    for block in range(2):
        query, value = (state.pop(f"blocks.{block}.attn.{part}_bias") for part in "qv")
        state.pop(f"blocks.{block}.attn.k_bias", None)
        state[f"blocks.{block}.attn.qkv.bias"] = torch.cat((query, torch.zeros_like(query), value))
    torch.save({"teacher": under("backbone.", state)}, tmp_path / "w.pth")
    images = torch.randn(1, 3, 32, 32)
    found = load_backbone(str(tmp_path / "w.pth"))
    tokens = made.forward_features(images)[:, made.num_prefix_tokens :]
    torch.testing.assert_close(found.layers(images, [2], norm="final")[2].tokens, tokens, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "OpenCLIP",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("DINOv2 registers", "DINOv2 in training")),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    """Every tensor left out, flattened or made a scalar: the file is refused, or was not needed."""
    options, wrap = WRAPPINGS[name]
    whole = wrap(network(**options).state_dict())
    inner, said = whole.get("model", whole), list[str]()
    for tensor in list(inner):
        for change in (None, inner[tensor].flatten(), torch.zeros(())):
            damaged = {key: value for key, value in (inner | {tensor: change}).items() if value is not None}
            torch.save(damaged, tmp_path / "w.pth")
            try:
                load_backbone(str(tmp_path / "w.pth"))
            except DinoskipError as error:
                said.append(str(error))
    assert said
    assert not any("\n" in text for text in said)
