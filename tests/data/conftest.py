from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.segmentation import voc_palette
from dinoskip.data.sprites import photo

OBJECTS = {
    "a1": [("dog", 3, 5, 20, 30)],
    "a2": [("cat", 1, 1, 8, 8), ("dog", 10, 10, 40, 32)],
    "a3": [("cat", 2, 2, 9, 9)],
}


def write_mask(path: Path, labels: np.ndarray) -> None:
    image = Image.fromarray(labels.astype(np.uint8), "P")
    image.putpalette(voc_palette().tobytes())
    image.save(path)


def annotation(objects: list[tuple], extra: str = "") -> str:
    boxes = "".join(
        f"<object><name>{n}</name><part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
        f"</bndbox></part><difficult>1</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax>"
        "</bndbox></object>"
        for n, a, b, c, d in objects
    )
    return f"<annotation>{extra}{boxes}</annotation>"


@pytest.fixture
def voc_tree(tmp_path: Path) -> Path:
    """A VOCdevkit with three images of 48×40 pixels; labels 0, 8 (cat), 12 (dog), 255."""
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    for part in ("JPEGImages", "SegmentationClass", "SegmentationClassAug", "Annotations"):
        (folder / part).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, objects in OBJECTS.items():
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(folder / "JPEGImages" / f"{name}.jpg")
        labels = np.zeros((40, 48), dtype=np.uint8)
        labels[5:30, 5:20] = 12
        labels[30:32] = 255
        write_mask(folder / "SegmentationClass" / f"{name}.png", labels)
        write_mask(folder / "SegmentationClassAug" / f"{name}.png", np.minimum(labels, 12))
        (folder / "Annotations" / f"{name}.xml").write_text(annotation(objects))
    for kind in ("Segmentation", "Main"):
        (folder / "ImageSets" / kind).mkdir(parents=True)
        for split, names in {
            "train": "a1\na2\n",
            "val": "a3\n",
            "trainval": "a1\na2\na3\n",
            "trainaug": "a1\n",
        }.items():
            (folder / "ImageSets" / kind / f"{split}.txt").write_text(names)
    return tmp_path / "VOCdevkit"


@pytest.fixture
def photo_folder(tmp_path: Path) -> Path:
    """Twelve small JPEGs cut from real photographs, of different sizes."""
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for number in range(12):
        crop = photo("coffee")[10 * number : 10 * number + 60 + number, 20 : 20 + 90 - 2 * number]
        name = f"{'sub/' if number % 3 == 0 else ''}p{number:02}.jpg"
        Image.fromarray(crop).save(folder / name, quality=95)
    return folder
