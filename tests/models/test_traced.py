"""Backbones as programs that run without our code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dinoskip.cli import main
from dinoskip.errors import ConfigError, WeightsError
from dinoskip.models import Backbone, VitConfig, create_model, load_backbone, save_weights
from dinoskip.models.build import from_config
from dinoskip.models.traced import METADATA, EveryBlock, _check, save_program

NAMES = ["block1_tokens", "block1_cls", "block2_tokens", "block2_cls"]


def weights(folder: Path, **settings: Any) -> str:
    config = VitConfig(name="vit_tiny_patch16", depth=2, img_size=32, **settings)
    torch.manual_seed(0)
    save_weights(folder / "w.safetensors", from_config(config).state_dict(), config, {})
    return f"weights:{folder / 'w.safetensors'}"


def expected(spec: str, images: Tensor, norm: Any) -> list[Tensor]:
    layers = load_backbone(spec).layers(images, [1, 2], norm=norm)
    return [part for layer in layers.values() for part in (layer.tokens, layer.cls) if part is not None]


def test_a_program_of_torch_export(tmp_path: Path) -> None:
    """The size is not the network's own; positions are resized as DINO does."""
    spec = weights(tmp_path, skip=False, position_resize="dino")
    path = tmp_path / "w.pt2"
    assert main(["models", "convert", spec, str(path), "--size", "48", "--norm", "final", "-q"]) == 0
    files = {METADATA: ""}
    program = torch.export.load(path, extra_files=files).module()
    about = json.loads(files[METADATA])
    assert about["outputs"] == NAMES
    assert (about["image_size"], about["norm"], about["mean"]) == (48, "final", [0.485, 0.456, 0.406])
    for batch in (1, 5):
        images = torch.randn(batch, 3, 48, 48)
        torch.testing.assert_close(list(program(images)), expected(spec, images, "final"), atol=1e-5, rtol=1e-5)


def test_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    spec = weights(tmp_path, skip="attention")
    path = tmp_path / "w.onnx"
    assert main(["models", "convert", spec, str(path), "-q"]) == 0  # at its own 32 pixels
    assert {one.name for one in tmp_path.iterdir()} == {"w.onnx", "w.safetensors"}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == NAMES
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    assert {one.shape[0] for one in session.get_outputs()} == {"batch"}
    about = json.loads(session.get_modelmeta().custom_metadata_map[METADATA])
    assert about["weights_sha256"] == load_backbone(spec).weights_hash
    for batch in (1, 5):
        images = torch.randn(batch, 3, 32, 32)
        told = session.run(None, {"images": images.numpy()})
        for ours, theirs in zip(expected(spec, images, "none"), told, strict=True):
            np.testing.assert_allclose(theirs, ours, atol=1e-5, rtol=1e-5)


def test_without_a_class_token() -> None:
    model = create_model("vit_tiny_patch16", depth=1, img_size=32, class_token=False, global_pool="avg")
    assert EveryBlock(Backbone.from_model(model), "none").outputs == ["block1_tokens"]


def test_refusals(tmp_path: Path) -> None:
    backbone = Backbone.from_model(create_model("vit_tiny_patch16", depth=1, img_size=32))
    with pytest.raises(ConfigError, match="size 40 is not a multiple of the patch size 16"):
        save_program(tmp_path / "x.pt2", backbone, size=40)
    assert not list(tmp_path.iterdir())
    module = EveryBlock(backbone, "final")
    assert _check(backbone, module, 32, module) == 0.0
    with pytest.raises(WeightsError, match="the program's features differ by"):
        _check(backbone, module, 32, lambda images: [one + 0.01 for one in module(images)])
