"""Levels and images of more cells than a page shows are left out, and the page says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dinoskip.pipeline.gallery.columns as columns
from dinoskip.cli import main
from dinoskip.models import load_backbone
from dinoskip.pipeline.gallery.columns import _side
from dinoskip.pipeline.gallery.images import GalleryImages, cuttable
from dinoskip.pipeline.gallery.settings import GallerySettings
from eval.tokencut.memory import LARGEST_DRAWN
from visualize.gallery.config import GalleryConfig

BACKBONE = "timm:resnet10t,pretrained=false"  # a stem of stride 2, then 4, 8, 16, 32


def photographs(folder: Path, *sides: int) -> Path:
    folder.mkdir()
    for number, side in enumerate(sides):
        pixels = np.random.default_rng(number).integers(0, 255, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return folder


def shown(folder: Path) -> GalleryImages:
    paths = tuple(sorted(folder.iterdir()))
    return GalleryImages(tuple(path.stem for path in paths), paths)


def test_side_and_cuts_are_bounded_by_cells(tmp_path: Path) -> None:
    images = shown(photographs(tmp_path / "photos", 64, 320))
    fine, coarse = (load_backbone(BACKBONE).parts[number] for number in (0, -1))
    assert (fine.patch_size, coarse.patch_size) == (2, 32)
    settings = GallerySettings(GalleryConfig(size=512), "train")
    assert _side(settings, coarse, images) == 512
    assert (_side(settings, fine, images) // 2) ** 2 == LARGEST_DRAWN
    assert cuttable(images, fine).ids == ("0",), "320 pixels have 160 x 160 cells"
    assert cuttable(images, coarse) is images


def test_a_look_leaves_out_what_is_too_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(columns, "LARGEST_DRAWN", 900)
    photos = photographs(tmp_path / "photos", 64, 64)
    assert main(["look", BACKBONE, "--data", str(photos), "--out", str(tmp_path / "look"), "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "block 1 left out: 12,544 cells" in said.err
    (gallery,) = (tmp_path / "look").rglob("stages/gallery/**/index.html")
    page = gallery.read_text()
    assert "block 1 left out" in page
    assert ", 2 px a cell" not in page
    assert ", 32 px a cell" in page
