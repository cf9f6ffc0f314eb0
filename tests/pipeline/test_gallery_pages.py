"""A gallery of more images than a page has: the same pictures page by page, in the colours of the first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.pipeline.gallery.images import in_turns

BACKBONE = "timm:vit_tiny_patch16_224,pretrained=false,img_size=64,depth=2"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        Image.fromarray(rng.integers(0, 256, (64, 96, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def gallery(photos: Path, out: Path, *settings: str) -> Path:
    command = ["gallery", BACKBONE, "--data", str(photos), "--out", str(out), "--device", "cpu"]
    assert main([*command, "gallery.first=5", "gallery.size=64", *settings]) == 0
    return out / "gallery"


def pictures(folder: Path, kind: str) -> list[np.ndarray]:
    return [np.asarray(Image.open(path)) for path in sorted((folder / "img").glob(f"{kind}-*.png"))]


def test_pages_hold_all_images_and_link_to_one_another(photos: Path, tmp_path: Path) -> None:
    out = gallery(photos, tmp_path / "paged", "gallery.page=2")
    folders = [out, out / "page-2", out / "page-3"]
    assert [len(list((folder / "img").glob("photo-*"))) for folder in folders] == [2, 2, 1]
    first, second = ((folder / "index.html").read_text() for folder in folders[:2])
    assert first.count('href="page-2/index.html"') == first.count('href="page-3/index.html"') == 2
    assert second.count('href="../index.html"') == second.count('href="../page-3/index.html"') == 2
    assert "Page 2 of 3" in second
    (rough,) = json.loads((out / "roughness.json").read_text())["models"].values()
    assert [len(values) for values in rough.values()] == [5, 5]
    assert sorted(path.name for path in out.glob("sheet-*.png")) == [
        "sheet-block1-plain.png", "sheet-block1.png", "sheet-model0.png",
    ]  # fmt: skip


def test_what_is_of_an_image_alone_is_the_same_on_any_page(photos: Path, tmp_path: Path) -> None:
    paged, whole = (gallery(photos, tmp_path / name, f"gallery.page={size}") for name, size in (("a", 3), ("b", 50)))
    assert not (whole / "page-2").exists()
    for kind in ("cut", "vector", "attention"):
        of_pages = [*pictures(paged, kind), *pictures(paged / "page-2", kind)]
        assert len(of_pages) == 5
        assert all(map(np.array_equal, of_pages, pictures(whole, kind)))


def test_images_of_class_folders_come_in_turns() -> None:
    names = ("a/1.png", "a/2.png", "a/x/3.png", "b/1.png", "c/1.png", "c/2.png")
    assert in_turns(names) == ("a/1.png", "b/1.png", "c/1.png", "a/2.png", "c/2.png", "a/x/3.png")
