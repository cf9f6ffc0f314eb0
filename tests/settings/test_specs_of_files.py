"""The file behind a spec, and a spec without the folders of the machine that it was written on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.settings.specs import weights_file, without_folders


def test_file_of_a_spec(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(b"x")
    assert weights_file(f"weights:{file}") == file
    assert weights_file(f"dino:{file},role=teacher") == file
    assert weights_file(str(file)) == file
    assert weights_file(f"timm:vit_tiny_patch16_224,file={file}") == file
    shipped = weights_file("dinoskip:skip")
    assert shipped is not None
    assert shipped.name == "skip.safetensors"
    for other in ("timm:vit_tiny_patch16_224", f"weights:{tmp_path / 'none.safetensors'}", "run:nowhere", "model"):
        assert weights_file(other) is None


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("weights:/a/b/c.safetensors", "weights:c.safetensors"),
        ("run:/runs/mine,role=student", "run:mine,role=student"),
        ("/a/b.pth", "b.pth"),
        ("timm:vit_tiny_patch16_224,pretrained=false", "timm:vit_tiny_patch16_224,pretrained=false"),
        ("hf:facebook/dinov2-small", "hf:facebook/dinov2-small"),
        ("hub:facebookresearch/dino:dino_vits16", "hub:facebookresearch/dino:dino_vits16"),
        ("dinoskip:skip", "dinoskip:skip"),
    ],
)
def test_named_without_folders(spec: str, named: str) -> None:
    assert without_folders(spec) == named
