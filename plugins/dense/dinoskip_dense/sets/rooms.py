"""Kind ``rooms``, embedded: rooms seen through a pinhole camera, whose depth and surface normals are known exactly.

A room is a box of five planes (floor, ceiling, back and side walls), papered with photographs from installed packages
and seen at a random angle; objects of :mod:`dinoskip.data.sprites` stand in it as flat pictures that face the camera.
Depth is along the optical axis; the axes of normals are the camera's: x to the right, y down, z into the image, and
normals point towards the camera. The folder is laid out as NYU Depth V2, normals beside it. Same configuration, same
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.schema import finite, violated
from dinoskip.data.sets.kind import SplitSynthetic
from dinoskip.data.sets.pairs import known_split
from dinoskip.data.sets.scenes import generated
from dinoskip.data.sprites import KINDS, background
from dinoskip.io.arrays import read_arrays
from dinoskip.io.images import read_depth, read_image
from dinoskip.runtime.randomness import numpy_rng
from dinoskip_dense.geometry import DepthDataset, LabelledNormals, NormalsDataset
from dinoskip_dense.sets.nyu import LISTS, depth_of_lists

F64 = NDArray[np.float64]
FOLDER = "rooms"
RECIPE = "rooms.json"
VERSION = 1  # of the recipe: higher where the same settings give other bytes
FINE = 2  # rays along a side of a pixel, for its colour
PAPER = 192  # pixels of the photograph on a plane
METRES = 2.5  # that it covers, mirrored beyond
FACING = np.array([0.0, 0.0, -1.0])  # the normal of what faces the camera


class RoomsConfig(SplitSynthetic):
    """Settings of the rooms: their number, their size in pixels and what is in them.

    ``val_fraction`` of the rooms form the splits ``val`` and ``test``, which are the same.
    """

    labels = ("depth", "normals")
    order = 30
    kind: Literal["rooms"] = "rooms"
    size: int = Field(default=224, ge=32, le=1024, description="side of the square images in pixels")
    max_objects: int = Field(default=3, ge=0, le=6, description="in a room")
    seed: int = Field(default=0, ge=0, description="of everything that is drawn")

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split of the composed folder."""
        opened = depth_of_lists(_inside(root), _nyu_split(split), self.dataset_name, None)
        return ImageFolder(_inside(root), opened.ids)

    def open_depth(self, root: Path, split: str, faults: list[str] | None) -> DepthDataset:
        """Open a split of the composed folder."""
        opened = depth_of_lists(_inside(root), _nyu_split(split), self.dataset_name, faults)
        return DepthDataset(opened.name, split, opened.ids, opened.image_paths, opened.depth_paths)

    def open_normals(self, root: Path, split: str, faults: list[str] | None) -> NormalsDataset:
        """Open a split of the composed folder."""
        opened = self.open_depth(root, split, faults)
        paths = tuple(path.with_name(path.name.replace("sync_depth", "normals")).with_suffix(".npz")
                      for path in opened.depth_paths)  # fmt: skip
        return NormalsDataset(
            opened.name, split, opened.ids, opened.image_paths, paths, load_normals, load_depth_of_normals
        )

    def generate(self, out: Path) -> Path:
        """Compose the rooms below ``out`` and return the folder ``out/rooms``, complete or not at all.

        See :func:`dinoskip.data.sets.scenes.generated`.
        """
        return generated(self, VERSION, out / FOLDER, lambda folder: _write(self, folder), RECIPE)


def _inside(root: Path) -> Path:
    """The folder with the lists: ``root``, or the one in it that :meth:`RoomsConfig.generate` makes."""
    return root / FOLDER if (root / FOLDER / RECIPE).is_file() else root


def _nyu_split(split: str) -> str:
    known_split("rooms", split, ("train", "val", "test"))
    return "train" if split == "train" else "test"


def load_normals(image: Path, normals: Path) -> LabelledNormals:
    """Read a room and its normals, known everywhere."""
    values = read_arrays(normals, "normals")["normals"]
    if values.dtype.kind != "f" or values.ndim != 3:
        raise violated(normals, f"normals are {values.dtype} {values.shape}, expected floats (height, width, 3)")
    finite(values, "normals", normals)
    values = values.astype(np.float32)
    return LabelledNormals(read_image(image), values, np.ones(values.shape[:2], dtype=np.bool_))


def load_depth_of_normals(normals: Path) -> NDArray[np.float32]:
    """Read the depth of a room in metres, float32 (H, W), from the file beside that of its normals."""
    path = normals.with_name(normals.name.replace("normals", "sync_depth")).with_suffix(".png")
    return (read_depth(path) / 1000).astype(np.float32)  # as _write saves it: millimetres


@dataclass(frozen=True)
class Room:
    """One room: ``image`` uint8 (S, S, 3), ``depth`` float64 (S, S) in metres, ``normals`` float64 (S, S, 3)."""

    image: NDArray[np.uint8]
    depth: F64
    normals: F64


@dataclass(frozen=True)
class _Box:
    """A room around the camera: planes n·x = d in its own axes (x right, y down, z to the back wall), and the view.

    ``view`` (3, 3) turns the camera's axes into the room's; ``focal`` is the focal length in sides of the image.
    """

    normals: F64  # (5, 3), into the room
    distances: F64  # (5,)
    view: F64
    focal: float


def _turn(yaw: float, pitch: float) -> F64:
    cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    turned: F64 = about_y @ about_x
    return turned


def _draw_box(rng: np.random.Generator) -> _Box:
    # Metres from the camera, turns in radians: every depth is below the 10 m up to which NYU's are scored.
    left, right = rng.uniform(1.0, 3.0, 2)
    floor, ceiling, back = rng.uniform(1.1, 1.7), rng.uniform(0.9, 1.5), rng.uniform(2.5, 7.0)
    normals = np.array([[0, -1, 0], [0, 1, 0], [0, 0, -1], [1, 0, 0], [-1, 0, 0]], dtype=np.float64)
    distances = -np.array([floor, ceiling, back, left, right])
    view = _turn(rng.uniform(-0.35, 0.35), rng.uniform(-0.15, 0.15))
    return _Box(normals, distances, view, float(rng.uniform(0.8, 1.2)))


def _rays(size: int, focal: float, fine: int) -> F64:
    """Directions of rays in the camera's axes, with z = 1: float64 (S·fine, S·fine, 3)."""
    at = ((np.arange(size * fine) + 0.5) / (size * fine) - 0.5) / focal
    x, y = np.meshgrid(at, at)
    return np.stack([x, y, np.ones_like(x)], -1)


def _first_planes(box: _Box, rays: F64) -> tuple[F64, NDArray[np.int64]]:
    """Depth at which rays (..., 3) meet the first plane, and its number."""
    slope = rays @ box.view.T @ box.normals.T  # (..., 5): below 0 where a ray goes towards the plane
    depth = np.where(slope < -1e-9, box.distances / np.minimum(slope, -1e-9), np.inf)  # parallel rays never meet
    first = depth.argmin(-1)
    return np.take_along_axis(depth, first[..., None], -1)[..., 0], first


def _mirrored(metres: F64) -> NDArray[np.int64]:
    """Return positions on the wallpaper, 0..PAPER-1, of positions on a plane; the paper is mirrored at every seam."""
    at = np.floor(metres * (PAPER / METRES)).astype(np.int64) % (2 * PAPER)
    return np.where(at < PAPER, at, 2 * PAPER - 1 - at)


def draw_room(config: RoomsConfig, number: int) -> Room:
    """Compose room ``number``: a pure function of the configuration's seed and size and of the number."""
    rng = numpy_rng(config.seed, "room", number)
    size, box = config.size, _draw_box(rng)
    papers = np.stack([background(rng, PAPER) for _ in box.distances])
    light = rng.uniform(0.75, 1.1, len(box.distances))
    rays = _rays(size, box.focal, FINE)
    far, plane = _first_planes(box, rays)
    places = (rays * far[..., None]) @ box.view.T  # in the room's axes
    other = np.array([[0, 2], [0, 2], [0, 1], [2, 1], [2, 1]])[plane]  # the two axes along each plane
    along = _mirrored(np.take_along_axis(places, other, -1))
    colours = papers[plane, along[..., 1], along[..., 0]] * light[plane, None]
    colours = colours / (0.85 + 0.05 * far[..., None])  # darker where it is far
    canvas = colours.reshape(size, FINE, size, FINE, 3).mean((1, 3))
    depth, plane = _first_planes(box, _rays(size, box.focal, 1))
    normals = (box.normals @ box.view)[plane]
    objects = [_placed(rng, box, size) for _ in range(int(rng.integers(0, config.max_objects + 1)))]
    for item in sorted(objects, key=lambda placed: -placed.depth):
        _paste(item, canvas, depth, normals)
    return Room(np.clip(np.rint(canvas), 0, 255).astype(np.uint8), depth, normals)


@dataclass(frozen=True)
class _Object:
    """A picture (h, w, 4) of 0..255 that faces the camera at ``depth`` metres; its lower middle at ``foot`` (x, y)."""

    pixels: F64
    depth: float
    foot: tuple[int, int]


def _placed(rng: np.random.Generator, box: _Box, size: int) -> _Object:
    """An object that stands on the floor at a place that the camera may see."""
    sprite = KINDS[int(rng.integers(len(KINDS)))].make(rng)
    depth = float(rng.uniform(1.3, max(1.6, -0.7 * box.distances[2])))
    across = float(rng.uniform(-0.4, 0.4)) * depth / box.focal
    normal = box.normals[0] @ box.view  # of the floor, in the camera's axes
    down = (box.distances[0] - normal[0] * across - normal[2] * depth) / normal[1]
    height = float(rng.uniform(0.5, 1.3))
    pixels = max(4, round(size * box.focal * height / depth))
    width = max(4, round(pixels * sprite.width / sprite.height))
    picture = np.asarray(sprite.resize((width, pixels), Image.Resampling.BICUBIC)).astype(np.float64)
    foot = tuple(round(size * (0.5 + box.focal * side / depth)) for side in (across, float(down)))
    return _Object(picture, depth, (foot[0], foot[1]))


def _paste(item: _Object, canvas: F64, depth: F64, normals: F64) -> None:
    """Put an object in front of what is farther away; where more than half of a pixel is its, so is the depth."""
    height, width = item.pixels.shape[:2]
    top, left = item.foot[1] - height, item.foot[0] - width // 2
    rows = slice(max(top, 0), min(top + height, len(canvas)))
    columns = slice(max(left, 0), min(left + width, len(canvas)))
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return
    part = item.pixels[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    alpha = part[..., 3] / 255 * (depth[rows, columns] > item.depth)
    canvas[rows, columns] += (part[..., :3] - canvas[rows, columns]) * alpha[..., None]
    inside = alpha > 0.5
    depth[rows, columns][inside] = item.depth
    normals[rows, columns][inside] = FACING


def _write(config: RoomsConfig, folder: Path) -> None:
    names = [f"{FOLDER}/{{}}_{number:05d}" for number in range(config.images)]
    (folder / FOLDER).mkdir(parents=True)
    for number, name in enumerate(names):
        room = draw_room(config, number)
        Image.fromarray(room.image).save(folder / f"{name.format('rgb')}.jpg", "JPEG", quality=95)
        Image.fromarray(np.rint(1000 * room.depth).astype(np.uint16)).save(folder / f"{name.format('sync_depth')}.png")
        with open(folder / f"{name.format('normals')}.npz", "wb") as stream:
            np.savez_compressed(stream, normals=room.normals.astype(np.float32))
    lines = [f"{name.format('rgb')}.jpg {name.format('sync_depth')}.png\n" for name in names]
    for split, part in (("train", lines[: -config.held_out]), ("test", lines[-config.held_out :])):
        (folder / LISTS[split][0]).write_text("".join(part), encoding="utf-8")
