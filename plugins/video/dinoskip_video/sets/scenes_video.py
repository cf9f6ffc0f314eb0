"""Kind ``scenes_video``: videos of objects that move over a panning background, with exact masks, as DAVIS has them.

Objects and backgrounds are those of :mod:`dinoskip.data.sprites`. Every object glides, turns and changes its size
smoothly, and may pass behind one of a larger number. Same configuration, same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image
from pydantic import Field

from dinoskip.data.segmentation import save_mask
from dinoskip.data.sets.kind import CheckedSplit, Synthetic
from dinoskip.data.sets.scenes import generated
from dinoskip.data.sprites import KINDS, background
from dinoskip.runtime.randomness import numpy_rng
from dinoskip_video.sets.davis import LEAST_FRAMES, DavisLayout

VERSION = 1  # of the recipe: higher where the same settings give other bytes
SPLIT = "val"
_ASPECT = 4 / 3  # width of a frame by its height
_PAN = 0.12  # how far the background moves, by the frame's width
_GLIDE = 0.3  # how far an object moves at most, by the frame's sides


class ScenesVideoConfig(DavisLayout, Synthetic):
    """Settings of the videos: their number, their frames, the height in pixels, and the most objects in one.

    The width of a frame is a third greater than its height.
    """

    order = 50
    kind: Literal["scenes_video"] = "scenes_video"
    videos: int = Field(default=8, ge=1, le=1000, description="how many")
    frames: int = Field(default=12, ge=LEAST_FRAMES, le=1000, description="of every video")
    size: int = Field(default=192, ge=48, le=1024, description="height of a frame in pixels, which is a third wider")
    max_objects: int = Field(default=3, ge=1, le=4, description="in a video: the first has one, the next two, ...")
    seed: int = Field(default=0, ge=0, description="of everything that is drawn")

    def generate(self, out: Path) -> Path:
        """Make the videos in ``out/DAVIS``, the layout of DAVIS 2017, all in the split val."""
        return generated(self, VERSION, out / "DAVIS", lambda folder: _write(self, folder))

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """The one split, and its number of frames."""
        return [CheckedSplit("video", SPLIT, self.videos * self.frames)]


@dataclass(frozen=True)
class _Track:
    """An object and how it moves: place of its middle (x, y), turn in degrees, longest side, at each frame."""

    sprite: Image.Image
    places: np.ndarray  # (n, 2)
    angles: np.ndarray
    sides: np.ndarray

    def drawn(self, frame: int) -> tuple[Image.Image, int, int]:
        """Return the turned sprite and its left and top."""
        scale = self.sides[frame] / max(self.sprite.size)
        size = tuple(max(8, round(length * scale)) for length in self.sprite.size)
        turned = self.sprite.resize((size[0], size[1]), Image.Resampling.BICUBIC).rotate(
            float(self.angles[frame]), Image.Resampling.BICUBIC, expand=True
        )
        x, y = self.places[frame]
        return turned, round(x - turned.width / 2), round(y - turned.height / 2)


def draw_video(config: ScenesVideoConfig, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Compose video ``number``: of every frame the image uint8 (H, W, 3) and the object at each pixel uint8 (H, W)."""
    rng = numpy_rng(config.seed, "scenes-video", number)
    height, width = config.size, round(config.size * _ASPECT)
    wide = round(width * (1 + _PAN)) + 1
    ground = background(rng, wide)[:height]
    ground *= rng.uniform(0.75, 0.95)
    start, direction = (0, 1) if rng.random() < 0.5 else (wide - width, -1)
    count = 1 + number % config.max_objects
    tracks = [_track(rng, config, (height, width), place, count) for place in range(count)]
    frames = []
    for frame in range(config.frames):
        at = start + direction * round(_PAN * width * frame / config.frames)
        canvas = Image.fromarray(np.clip(np.rint(ground[:, at : at + width]), 0, 255).astype(np.uint8))
        owner = np.zeros((height, width), dtype=np.uint8)
        for label, track in enumerate(tracks, 1):
            sprite, left, top = track.drawn(frame)
            canvas.paste(sprite, (left, top), sprite.getchannel("A"))
            alpha = Image.new("L", (width, height))
            alpha.paste(sprite.getchannel("A"), (left, top))
            owner[np.asarray(alpha) > 127] = label
        frames.append((np.asarray(canvas), owner))
    return frames


def _track(
    rng: np.random.Generator, config: ScenesVideoConfig, size: tuple[int, int], place: int, count: int
) -> _Track:
    """Draw an object; in the first frame the objects stand side by side, so that each is seen."""
    height, width = size
    kind = KINDS[int(rng.integers(len(KINDS)))]
    sprite = kind.make(rng)
    share = 1 / count
    # Shares below 1 leave room between neighbours, and above and below, to move in.
    side = min(0.55 * height, 0.9 * share * width) * rng.uniform(0.85, 1)
    first = np.array([width * share * (place + 0.5), height * rng.uniform(0.42, 0.58)])
    speed = rng.uniform(-_GLIDE, _GLIDE, 2) * (width, height)
    time = np.linspace(0, 1, config.frames)
    sway = 0.04 * height * np.sin(2 * np.pi * (rng.uniform(0.5, 1.5) * time))
    places = first + time[:, None] * speed + sway[:, None] * (0, 1)
    # Of middles: about a fifth of an object may leave the frame, so that it stays in sight.
    lowest, highest = 0.3 * side, np.array([width, height]) - 0.3 * side
    angles = rng.uniform(-1, 1) * min(kind.tilt, 60) * time + rng.uniform(-1, 1) * min(kind.tilt, 60) / 2
    return _Track(sprite, np.clip(places, lowest, highest), angles, side * (1 + rng.uniform(-0.25, 0.25) * time))


def _write(config: ScenesVideoConfig, folder: Path) -> None:
    names = [f"video_{number:04d}" for number in range(config.videos)]
    for number, name in enumerate(names):
        images, masks = (folder / part / "480p" / name for part in ("JPEGImages", "Annotations"))
        images.mkdir(parents=True)
        masks.mkdir(parents=True)
        for frame, (image, owner) in enumerate(draw_video(config, number)):
            Image.fromarray(image).save(images / f"{frame:05d}.jpg", "JPEG", quality=95)
            save_mask(masks / f"{frame:05d}.png", owner)
    (folder / "ImageSets" / "2017").mkdir(parents=True)
    (folder / "ImageSets" / "2017" / f"{SPLIT}.txt").write_text("".join(f"{name}\n" for name in names))
