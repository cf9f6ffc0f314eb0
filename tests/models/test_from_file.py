"""Checkpoint files of facebookresearch/dino and its like, and what is refused."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from dinoskip.errors import WeightsError
from dinoskip.models import load_backbone
from tests.helpers.small_network import equal_to


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
        ({"a": torch.zeros(1)}, "no ViT in it"),
    ],
)
def test_dino_files_that_are_something_else(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_backbone(saved(tmp_path / "w.pth", content))


def test_dino_of_a_billion_blocks(tmp_path: Path, model: torch.nn.Module) -> None:
    state = {name.replace("blocks.1.", "blocks.999999999."): tensor for name, tensor in model.state_dict().items()}
    with pytest.raises(WeightsError, match="not numbered from 0 without gaps"):
        load_backbone(saved(tmp_path / "w.pth", state))


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
