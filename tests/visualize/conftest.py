"""A small stand-in for a feature store: smooth features of real photographs, no model and no training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.segmentation import voc_palette
from dinoskip.results.rows import EvalResult
from visualize.figures.drawing import FORMATS, written_as
from visualize.gallery import Classes, Discovery, GalleryImage, GalleryModel

BLOCKS = (1, 2, 3)
PHOTOS = ("astronaut", "coffee", "chelsea")
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'</script>\u202egpj.\u2066{{7*7}}" + "x" * 10_000


@dataclass
class FakeStore:
    """The reading side of FeatureStore for images of one grid."""

    ids: tuple[str, ...]
    blocks: tuple[int, ...]
    arrays: dict[int, np.ndarray]  # block -> (N, T, C) float16
    side: tuple[int, int]

    def grid(self, index: int) -> tuple[int, int]:
        return self.side

    def tokens(self, block: int, index: int) -> np.ndarray:
        return self.arrays[block][index]


def smooth_features(photo: np.ndarray, side: tuple[int, int], block: int, noise: float, seed: int) -> np.ndarray:
    """(h*w, 16) float16: colour at two scales, mixed at random and squashed; the deeper the smoother."""
    rng = np.random.default_rng(seed)
    height, width = side
    fine = np.asarray(Image.fromarray(photo).resize((width, height), Image.Resampling.BOX), np.float64)
    few = max(2, height // (block + 1)), max(2, width // (block + 1))
    coarse = Image.fromarray(photo).resize(few[::-1], Image.Resampling.BOX)
    wide = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64)
    mixed = np.concatenate([fine, wide, wide**2 / 255], -1).reshape(height * width, 9) / 128 - 1
    features = np.tanh(mixed @ np.random.default_rng(block).normal(size=(9, 16)))
    return (features + noise * rng.normal(size=features.shape)).astype(np.float16)


@dataclass
class Scene:
    """The inputs of a gallery."""

    models: list[GalleryModel]
    images: list[GalleryImage]
    classes: Classes


def rows_of(level: float, blocks: tuple[int, ...] = BLOCKS) -> list[EvalResult]:
    """Plausible rows of one variant: three measures at every block, and one multiscale row."""
    kinds = (("mIoU", "probe", "voc2012", "val"), ("CorLoc", "tokencut", "voc2012", "trainval"))
    rows = [
        EvalResult(metric, level + 10 * np.sin(block / len(blocks) * 2 + number), task, str(block), data, split, 100)
        for number, (metric, task, data, split) in enumerate(kinds)
        for block in blocks
    ]
    rows += [EvalResult("accuracy_k20", level + block, "knn", str(block), "imagenette", "val", 50) for block in blocks]
    return [*rows, EvalResult("mIoU", level + 12, "probe", "+".join(map(str, blocks)), "voc2012", "val", 100)]


@pytest.fixture
def make_scene(tmp_path: Path) -> Callable[..., Scene]:
    """Return ``build(names=..., ids=...)`` that writes three small photographs and returns a Scene."""

    def build(names: tuple[str, ...] = ("skip", "skipless"), ids: tuple[str, ...] = PHOTOS) -> Scene:
        from skimage import data

        photos, images = [], []
        for number, (identity, name) in enumerate(zip(ids, PHOTOS, strict=True)):
            pixels = np.ascontiguousarray(getattr(data, name)()[: 300 - 50 * number, :400][::2, ::2])
            path = tmp_path / "photos" / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(path)
            label = np.zeros(pixels.shape[:2], np.uint8)
            label[20:70, 30:120] = number + 1
            label[:4] = 255
            photos.append(pixels)
            images.append(GalleryImage(identity, path, label, np.array([[30, 20, 120, 70]], np.float32)))
        models = [_model(name, column, ids, photos) for column, name in enumerate(names)]
        return Scene(models, images, Classes(("background", "person", "cup", HOSTILE), voc_palette()))

    return build


def _model(name: str, column: int, ids: tuple[str, ...], photos: list[np.ndarray]) -> GalleryModel:
    side = (8, 8)
    arrays = {
        block: np.stack([smooth_features(photo, side, block, 0.2, 7 * column + block) for photo in photos])
        for block in BLOCKS
    }
    store = FakeStore(ids, BLOCKS, arrays, side)
    predictions: dict[int, dict[str, np.ndarray]] = {}
    discoveries: dict[int, dict[str, Discovery]] = {}
    attention: dict[int, dict[str, np.ndarray]] = {}
    rng = np.random.default_rng(column)
    for block in BLOCKS:
        for number, identity in enumerate(ids):
            height, width = photos[number].shape[:2]
            grid = -(-height // 16), -(-width // 16)
            vector = smooth_features(photos[number], grid, block, 0.1, column)[:, 0].reshape(grid).astype(np.float32)
            predicted = np.where(vector > vector.mean(), number + 1, 0).astype(np.uint8)
            predictions.setdefault(block, {})[identity] = predicted
            box = (32.0, 16.0, 96.0 + 8 * block, 80.0)
            discoveries.setdefault(block, {})[identity] = Discovery(box, vector, vector > vector.mean(), 16)
            attention.setdefault(block, {})[identity] = rng.dirichlet(np.ones(64), 2).reshape(2, *side)
    rows = rows_of(30.0 + 5 * column)
    return GalleryModel(name, store, predictions, discoveries, rows, "a fake model", attention)


@pytest.fixture
def hostile() -> str:
    """A name that tries to leave its place: tags, quotes, direction overrides, template syntax, 10 kB."""
    return HOSTILE


@pytest.fixture
def for_papers() -> None:
    """Figures of this test are written as PDF and PNG, too."""


@pytest.fixture(autouse=True)
def svg_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Figures are written as pages show them: the files for papers take half of the time."""
    with written_as(FORMATS if "for_papers" in request.fixturenames else ()):
        yield
