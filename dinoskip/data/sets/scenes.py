"""Kind ``scenes``, the embedded data set: labelled scenes in VOC layout, from photographs inside installed packages.

Every scene is a stretch of a real photograph with one to three objects, turned, scaled, lit from one side and casting a
soft shadow. Objects are cut from other photographs (:mod:`dinoskip.data.sprites`), where colour alone tells classes, or
drawn (:mod:`dinoskip.data.shapes`), where form alone does. Same configuration, same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageFilter
from pydantic import Field

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.folders import ImageFolder
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.segmentation import IGNORE, SegmentationDataset, save_mask
from dinoskip.data.sets.kind import SplitSynthetic, Synthetic
from dinoskip.data.sets.voc import CLASSES_FILE, labelled_by_largest_box, voc_detection, voc_images, voc_segmentation
from dinoskip.data.shapes import SHAPES
from dinoskip.data.sprites import KINDS, Kind, background
from dinoskip.errors import OutputInUse, translate_write_errors
from dinoskip.io.files import TEMPORARY, publish_directory, read_json, write_json
from dinoskip.io.output import remove
from dinoskip.runtime.cores import available_cores
from dinoskip.runtime.randomness import numpy_rng

YEAR = 2012  # of the VOC layout they are written in
RECIPE = "scenes.json"
VERSION = 1  # of the recipe: higher where the same settings give other bytes
PLACING_TRIES = 30  # then the scene has one object less: it may be too full for another
MAX_OVERLAP = 0.12  # of the smaller box
_THREADS = 8  # that draw scenes, at most: their Python and numpy have one lock, for which more would wait


class ScenesConfig(SplitSynthetic):
    """Settings of the scenes: their number, their size in pixels, and their classes.

    ``val_fraction`` of the scenes form the validation split.
    """

    labels = ("segmentation", "detection")
    kind: Literal["scenes"] = "scenes"
    size: int = Field(default=224, ge=64, le=1024, description="side of a scene, pixels")
    classes: int = Field(default=6, ge=2, le=len(KINDS), description="kinds of objects")
    max_objects: int = Field(default=3, ge=1, le=5, description="most objects in a scene")
    seed: int = Field(default=0, ge=0, description="of all draws")
    objects: Literal["cutouts", "shapes"] = Field(
        default="cutouts",
        description="cutouts: one photograph a class, known by its colours; shapes: drawn, a class is a form",
    )

    @property
    def recipe(self) -> dict[str, Any]:
        """As the set's folder records it: without ``objects``, which is newer, where they are cut out."""
        return {key: value for key, value in super().recipe.items() if (key, value) != ("objects", "cutouts")}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The object classes and how objects of them are made."""
        return (SHAPES if self.objects == "shapes" else KINDS)[: self.classes]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The object classes, background not among them."""
        return tuple(kind.name for kind in self.kinds)

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split of the composed folder."""
        return voc_images(root, split, YEAR)

    def open_segmentation(self, root: Path, split: str, faults: list[str] | None) -> SegmentationDataset:
        """Open a split of masks of the composed folder."""
        return voc_segmentation(root, split, YEAR, name=self.kind, faults=faults)

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        """Open a split of boxes of the composed folder."""
        return voc_detection(root, split, YEAR, name=self.kind, faults=faults)

    def open_labelled(self, root: Path, split: str, faults: list[str] | None) -> LabelledFolder:
        """Open a split with the class of each image's largest box."""
        return labelled_by_largest_box(self.open_detection(root, split, faults))

    def generate(self, out: Path) -> Path:
        """Generate the scenes below ``out``: the VOC folder ``out/VOC2012``."""
        return generated(self, VERSION, out / f"VOC{YEAR}", lambda folder: _write(self, folder))


@dataclass(frozen=True)
class Scene:
    """One scene: ``image`` uint8 (S, S, 3), ``labels`` uint8 (S, S), and (class name, x1, y1, x2, y2) end exclusive."""

    image: np.ndarray
    labels: np.ndarray
    boxes: list[tuple[str, int, int, int, int]]


@dataclass(frozen=True)
class _Placed:
    label: int
    colours: np.ndarray  # (h, w, 3) float32
    alpha: np.ndarray  # (h, w) float32, 0..1
    top: int
    left: int

    @property
    def window(self) -> tuple[slice, slice]:
        height, width = self.alpha.shape
        return slice(self.top, self.top + height), slice(self.left, self.left + width)


def draw_scene(config: ScenesConfig, number: int) -> Scene:
    """Compose scene ``number``: a pure function of the configuration's seed, size, classes and of the number.

    The first and largest object's class goes round with the number, so that every class is in every split.
    """
    rng = numpy_rng(config.seed, "scene", number)
    size = config.size
    canvas = background(rng, size)
    canvas *= _daylight(rng, size)
    angle = rng.uniform(0, 2 * np.pi)
    shift = np.array([np.sin(angle), np.cos(angle)]) * size * 0.025
    count = 1 + int(rng.choice(config.max_objects, p=_chances(config.max_objects)))
    placed: list[_Placed] = []
    for position in range(count):
        label = (number if position == 0 else int(rng.integers(config.classes))) % config.classes
        # Sides, as shares of the scene's: of several objects the first is the largest, whose class the image has; the
        # others are small enough to find a place beside it.
        low, high = (0.5, 0.72) if count == 1 else (0.38, 0.52) if position == 0 else (0.24, 0.36)
        item = _place(rng, config.kinds[label], label, int(size * rng.uniform(low, high)), size, placed)
        if item is not None:
            placed.append(item)
    owner = np.zeros((size, size), dtype=np.uint8)  # 1 + position in ``placed`` of the object seen at each pixel
    for position, item in enumerate(placed, start=1):
        _cast_shadow(canvas, item, shift)
        rows, columns = item.window
        alpha = item.alpha[..., None]
        canvas[rows, columns] = canvas[rows, columns] * (1 - alpha) + item.colours * alpha
        owner[rows, columns][item.alpha > 0.5] = position
    labels = np.array([0, *(item.label + 1 for item in placed)], dtype=np.uint8)[owner]
    boxes = []
    for position, item in enumerate(placed, start=1):
        ys, xs = np.nonzero(owner == position)
        name = config.kinds[item.label].name
        boxes.append((name, int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1))
    labels[_borders(owner)] = IGNORE
    return Scene(np.clip(np.rint(canvas), 0, 255).astype(np.uint8), labels, boxes)


def _chances(most: int) -> np.ndarray:
    """Fewer scenes with more objects: 1, 1/2, 1/3, ... of those with one."""
    weights = 1 / np.arange(1, most + 1)
    chances: np.ndarray = weights / weights.sum()
    return chances


def _daylight(rng: np.random.Generator, size: int) -> np.ndarray:
    """Slow change of brightness over the scene and a slight cast of colour, float32 (size, size, 3)."""
    ramp = np.linspace(-1, 1, size, dtype=np.float32)
    slope = rng.uniform(-0.1, 0.1, 2).astype(np.float32)
    field = rng.uniform(0.82, 1.0) + slope[0] * ramp[:, None] + slope[1] * ramp[None, :]
    light: np.ndarray = field[..., None] * rng.uniform(0.95, 1.05, 3)
    return light.astype(np.float32)


def _place(
    rng: np.random.Generator, kind: Kind, label: int, side: int, size: int, others: list[_Placed]
) -> _Placed | None:
    """Make an object of about ``side`` pixels and find room for it; None if there is none after many tries."""
    sprite = kind.make(rng)
    if rng.random() < 0.5:
        sprite = sprite.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scale = side / max(sprite.size)
    width, height = (max(8, round(length * scale)) for length in sprite.size)
    sprite = sprite.resize((width, height), Image.Resampling.BICUBIC)
    turned = sprite.rotate(rng.uniform(-kind.tilt, kind.tilt), Image.Resampling.BICUBIC, expand=True)
    turned = turned.crop(turned.getchannel("A").getbbox())
    pixels = np.asarray(turned).astype(np.float32)
    colours = pixels[..., :3] * (rng.uniform(0.88, 1.12) * rng.uniform(0.95, 1.05, 3)).astype(np.float32)
    alpha = pixels[..., 3] / 255
    height, width = alpha.shape
    margin = max(1, size // 50)
    if max(height, width) > size - 2 * margin:
        return None
    for _ in range(PLACING_TRIES):
        top = int(rng.integers(margin, size - margin - height + 1))
        left = int(rng.integers(margin, size - margin - width + 1))
        item = _Placed(label, colours, alpha, top, left)
        if all(_overlap(item, other) <= MAX_OVERLAP for other in others):
            return item
    return None


def _overlap(first: _Placed, second: _Placed) -> float:
    """Shared area of two boxes as a share of the smaller one."""
    (h1, w1), (h2, w2) = first.alpha.shape, second.alpha.shape
    rows = min(first.top + h1, second.top + h2) - max(first.top, second.top)
    columns = min(first.left + w1, second.left + w2) - max(first.left, second.left)
    return float(max(0, rows) * max(0, columns) / min(h1 * w1, h2 * w2))


def _cast_shadow(canvas: np.ndarray, item: _Placed, shift: np.ndarray) -> None:
    size = len(canvas)
    solid = Image.new("L", (size, size))
    alpha = Image.fromarray(np.rint(item.alpha * 255).astype(np.uint8))
    solid.paste(alpha, (item.left + round(shift[1]), item.top + round(shift[0])))
    soft = np.asarray(solid.filter(ImageFilter.GaussianBlur(size * 0.022)), dtype=np.float32) / 255
    canvas *= 1 - 0.5 * soft[..., None]


def _borders(owner: np.ndarray) -> np.ndarray:
    """Pixels within two (small scenes: one) of a change of object, as VOC's 255 rim, bool (S, S)."""
    image = Image.fromarray(owner)
    window = 5 if len(owner) >= 160 else 3
    high, low = (np.asarray(image.filter(kind(window))) for kind in (ImageFilter.MaxFilter, ImageFilter.MinFilter))
    changed: np.ndarray = high != low
    return changed


# --- writing -----------------------------------------------------------------------------------------


def generated(
    config: Synthetic, version: int, final: Path, write: Callable[[Path], None], recipe_file: str = RECIPE
) -> Path:
    """Return the folder ``final`` that ``write`` makes of a configuration and a version of the recipe.

    It appears complete or not at all. One of the same configuration is returned as it is; raises :class:`OutputInUse`
    if ``final`` is there and holds anything else.
    """
    recipe = {"version": version, **config.recipe}
    if final.exists():
        if (final / recipe_file).is_file() and read_json(final / recipe_file) == recipe:
            return final
        raise OutputInUse(f"{final}: holds other data", "choose another output folder or remove this one")
    temporary = final.parent / f"{TEMPORARY}scenes-{os.getpid()}"
    with translate_write_errors(final):
        try:
            write(temporary)
            write_json(temporary / recipe_file, recipe)
            publish_directory(temporary, final)
        finally:
            remove(temporary, quiet=True)
    return final


def _write(config: ScenesConfig, folder: Path) -> None:
    for part in ("JPEGImages", "SegmentationClass", "Annotations", "ImageSets/Segmentation", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    ids = [f"scene_{number:05d}" for number in range(config.images)]

    def save(number: int) -> None:
        scene, name = draw_scene(config, number), ids[number]
        Image.fromarray(scene.image).save(folder / "JPEGImages" / f"{name}.jpg", "JPEG", quality=95)
        save_mask(folder / "SegmentationClass" / f"{name}.png", scene.labels)
        (folder / "Annotations" / f"{name}.xml").write_text(_annotation(name, scene), encoding="utf-8")

    # Pillow turns, scales and encodes outside Python's lock, which is most of a scene's time; scenes are independent.
    # Where one fails or a signal comes, map() cancels those that have not begun.
    with ThreadPoolExecutor(min(_THREADS, available_cores()), thread_name_prefix="scenes") as pool:
        for _ in pool.map(save, range(len(ids))):
            pass
    splits = {"train": ids[: -config.held_out], "val": ids[-config.held_out :], "trainval": ids}
    for kind in ("Segmentation", "Main"):
        for split, names in splits.items():
            (folder / "ImageSets" / kind / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
    (folder / CLASSES_FILE).write_text("".join(f"{name}\n" for name in config.class_names))


def _annotation(name: str, scene: Scene) -> str:
    height, width = scene.labels.shape
    lines = [
        "<annotation>",
        "\t<folder>VOC2012</folder>",
        f"\t<filename>{name}.jpg</filename>",
        f"\t<size><width>{width}</width><height>{height}</height><depth>3</depth></size>",
        "\t<segmented>1</segmented>",
    ]
    for label, x1, y1, x2, y2 in scene.boxes:  # VOC counts from 1 and includes the last pixel
        box = f"<xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        lines.append(
            f"\t<object><name>{label}</name><truncated>0</truncated><difficult>0</difficult><bndbox>{box}</bndbox></object>"
        )
    return "\n".join([*lines, "</annotation>", ""])
