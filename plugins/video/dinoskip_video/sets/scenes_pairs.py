"""Kind ``scenes_pairs``: pairs of images of one object with known correspondence, in the layout of SPair-71k.

An object of :mod:`dinoskip.data.sprites` is scaled, turned, lit and placed on a new background in each of its views;
its keypoints go with it. Same configuration, same bytes.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageFilter
from pydantic import Field

from dinoskip.data.sets.kind import CheckedSplit, Synthetic
from dinoskip.data.sets.scenes import generated
from dinoskip.data.sprites import KINDS, background
from dinoskip.runtime.randomness import numpy_rng
from dinoskip_video.sets.spair import SpairLayout

VERSION = 1  # of the recipe: higher where the same settings give other bytes
SPLIT = "test"
_SHAVED = 4  # times 4 of a sprite's 256 pixels: how far inside its outline keypoints lie
_CANDIDATES = 2000  # places that keypoints are chosen from
_TURN = 30.0  # degrees: how far a view is turned at most


class ScenesPairsConfig(SpairLayout, Synthetic):
    """Settings of the pairs: objects of each class, views of each object, side in pixels, keypoints on an object.

    Every two views of an object are two pairs, one each way.
    """

    order = 80
    kind: Literal["scenes_pairs"] = "scenes_pairs"
    classes: int = Field(default=6, ge=1, le=len(KINDS), description="of objects")
    objects: int = Field(default=2, ge=1, le=1000, description="of every class")
    views: int = Field(default=3, ge=2, le=50, description="images of every object; each two are two pairs")
    size: int = Field(default=224, ge=48, le=1024, description="side of the square images in pixels")
    points: int = Field(default=8, ge=1, le=50, description="keypoints on an object")
    seed: int = Field(default=0, ge=0, description="of everything that is drawn")

    def generate(self, out: Path) -> Path:
        """Make the images and pairs in ``out/SPair-71k``, all in the split test."""
        return generated(self, VERSION, out / "SPair-71k", lambda folder: _write(self, folder))

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """The one split, and its number of pairs."""
        return [CheckedSplit("correspondence", SPLIT, self.classes * self.objects * self.views * (self.views - 1))]


@dataclass(frozen=True)
class View:
    """An image uint8 (S, S, 3) of an object, its keypoints int (n, 2) x y, its box x1 y1 x2 y2, all in pixels."""

    image: np.ndarray
    points: np.ndarray
    box: tuple[int, int, int, int]


def draw_views(config: ScenesPairsConfig, label: int, number: int) -> list[View]:
    """Compose all views of object ``number`` of a class."""
    rng = numpy_rng(config.seed, "scenes-pairs", label, number)
    sprite = KINDS[label].make(rng)
    points = _keypoints(sprite, config.points, rng)
    return [_view(rng, config.size, sprite, points, KINDS[label].tilt) for _ in range(config.views)]


def _keypoints(sprite: Image.Image, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return points (count, 2) x y on a sprite, far from one another: each the farthest from those before."""
    mask = sprite.getchannel("A").point(lambda value: 255 * (value > 250))
    for _ in range(_SHAVED):  # away from the outline, where there is room
        inner = mask.filter(ImageFilter.MinFilter(9))
        mask = mask if inner.getbbox() is None else inner
    inside = np.stack(np.nonzero(np.asarray(mask)), 1)[:, ::-1].astype(np.float64) + 0.5
    candidates = inside[rng.permutation(len(inside))[:_CANDIDATES]]
    chosen = [candidates[0]]
    for _ in range(count - 1):
        distance = np.min([((candidates - place) ** 2).sum(1) for place in chosen], axis=0)
        chosen.append(candidates[distance.argmax()])
    return np.array(chosen)


def _view(rng: np.random.Generator, size: int, sprite: Image.Image, points: np.ndarray, tilt: float) -> View:
    """Draw the object once: about half of the image, turned, lit; the middle goes where all of it is seen."""
    scale = size * rng.uniform(0.45, 0.65) / max(sprite.size)
    small = sprite.resize(
        (max(8, round(sprite.width * scale)), max(8, round(sprite.height * scale))), Image.Resampling.BICUBIC
    )
    turn = np.deg2rad(rng.uniform(-1, 1) * min(tilt, _TURN))
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    half = np.abs(rotation) @ np.array(small.size) / 2
    middle = rng.uniform(half + 1, size - half - 1)
    inverse = rotation.T
    shift = np.array(small.size) / 2 - inverse @ middle
    drawn = small.transform(
        (size, size), Image.Transform.AFFINE, (*inverse[0], shift[0], *inverse[1], shift[1]), Image.Resampling.BICUBIC
    )
    alpha = np.asarray(drawn.getchannel("A"), dtype=np.float32)[..., None] / 255
    colours = np.asarray(drawn, dtype=np.float32)[..., :3] * rng.uniform(0.85, 1.12) * rng.uniform(0.95, 1.05, 3)
    canvas = background(rng, size) * rng.uniform(0.75, 1.0)
    image = np.clip(np.rint(canvas * (1 - alpha) + colours * alpha), 0, 255).astype(np.uint8)
    centred = points * np.array(small.size) / sprite.size - np.array(small.size) / 2
    places = np.rint(centred @ rotation.T + middle - 0.5).astype(int)
    rows, columns = np.nonzero(alpha[..., 0] > 0.5)
    box = int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
    return View(image, places.clip(0, size - 1), box)


def _write(config: ScenesPairsConfig, folder: Path) -> None:
    annotations, listed = folder / "PairAnnotation" / SPLIT, list[str]()
    annotations.mkdir(parents=True)
    for label in range(config.classes):
        category = KINDS[label].name
        (folder / "JPEGImages" / category).mkdir(parents=True)
        for number in range(config.objects):
            views = draw_views(config, label, number)
            for at, view in enumerate(views):
                path = folder / "JPEGImages" / category / f"{number:03d}_{at:02d}.jpg"
                Image.fromarray(view.image).save(path, "JPEG", quality=95)
            for source, target in itertools.permutations(range(config.views), 2):
                names = [f"{number:03d}_{at:02d}" for at in (source, target)]
                listed.append(f"{len(listed):06d}-{names[0]}-{names[1]}:{category}")
                entry = _annotation(listed[-1], category, names, views[source], views[target])
                (annotations / f"{listed[-1]}.json").write_text(json.dumps(entry))
    (folder / "Layout" / "large").mkdir(parents=True)
    (folder / "Layout" / "large" / f"{SPLIT}.txt").write_text("".join(f"{name}\n" for name in listed))


def _annotation(name: str, category: str, names: list[str], source: View, target: View) -> dict[str, object]:
    """Return the fields that are read of SPair-71k's annotation of a pair."""
    entry: dict[str, object] = {"filename": name, "category": category, "mirror": 0}
    for part, image, view in zip(("src", "trg"), names, (source, target), strict=True):
        entry |= {
            f"{part}_imname": f"{image}.jpg",
            f"{part}_imsize": [view.image.shape[1], view.image.shape[0], 3],
            f"{part}_bndbox": list(view.box),
            f"{part}_kps": view.points.tolist(),
        }
    entry["kps_ids"] = [str(index) for index in range(len(source.points))]
    return entry
