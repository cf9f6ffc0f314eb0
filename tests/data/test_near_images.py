"""Images that two sets have in common by their looks: copies are found, other photographs are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import near_images
from dinoskip.data.equal_images import ImageFiles
from dinoskip.data.folders import ImageFolder
from dinoskip.data.near_images import NearCommon, Thumbnails

SAMPLES = Path(__file__).parents[3] / "shared" / "data"


def picture(seed: int, height: int = 120, width: int = 160) -> Image.Image:
    """Smooth random colours, as unlike as photographs are."""
    coarse = np.random.default_rng(seed).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def written(folder: Path, pictures: dict[str, Image.Image]) -> ImageFiles:
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in pictures.items():
        one.save(folder / name)
    return ImageFiles.of(ImageFolder.open(folder), folder.parent)


def compared(scored: ImageFiles, fitted: ImageFiles) -> NearCommon:
    return near_images.near_images(scored, fitted, Thumbnails.of(scored), Thumbnails.of(fitted))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "a.jpg": lambda one: one.resize((80, 60)),
    "b.webp": lambda one: one.convert("L"),
    "c.png": lambda one: one.resize((64, 64)),
    "d.jpg": lambda one: one.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "e.jpg": lambda one: one.transpose(Image.Transpose.FLIP_TOP_BOTTOM).resize((100, 70)),
    "f.jpg": lambda one: one.transpose(Image.Transpose.ROTATE_90),
    "g.webp": lambda one: one.transpose(Image.Transpose.TRANSVERSE),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_found_and_named(name: str, tmp_path: Path) -> None:
    train = written(tmp_path / "train", {f"{seed}.jpg": picture(seed) for seed in range(12)})
    val = written(tmp_path / "val", {"z.jpg": picture(100), name: COPIES[name](picture(7))})
    found = compared(val, train)
    assert (found.count, found.runs, found.looked_at, found.share) == (1, 1, 2, 0.5)
    assert found.example == (f"val/{name}", "train/7.jpg")


def test_equal_files_and_pictures_of_one_tone_are_not_counted(tmp_path: Path) -> None:
    grey = Image.new("RGB", (160, 120), (90, 90, 90))
    train = written(tmp_path / "train", {"a.png": picture(1), "b.png": grey})
    val = written(tmp_path / "val", {"a.png": picture(1), "c.jpg": grey.resize((80, 60))})
    assert compared(val, train).count == 0


def test_damaged_files_are_passed_over_and_samples_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = written(tmp_path / "train", {f"{seed:02d}.jpg": picture(seed) for seed in range(12)})
    val = written(tmp_path / "val", {f"{seed:02d}.png": picture(seed, 60, 80) for seed in range(3, 7)})
    (tmp_path / "train/05.jpg").write_bytes(b"no picture")
    assert (compared(val, train).count, compared(val, train).runs) == (3, 2)
    monkeypatch.setattr(near_images, "MOST", 6)
    found = compared(val, train)
    assert (found.looked_at, found.share_of_other) == (4, 0.5)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="needs ../shared/data")
def test_splits_of_published_sets_have_none() -> None:
    coco, imagenette = SAMPLES / "coco_mini", SAMPLES / "imagenette_mini"
    for one, other in ((coco / "train2017", coco / "val2017"), (imagenette / "val", coco / "val2017")):
        assert compared(*(ImageFiles.of(ImageFolder.open(part), part) for part in (one, other))).count == 0
