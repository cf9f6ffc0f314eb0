"""Kind ``davis``: DAVIS 2017, videos with a label map of the objects in every frame."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.label_values import LabelValues
from dinoskip.data.listing import folder_with, is_image_name, name_key, read_names, require_folder
from dinoskip.data.schema import both_ways, evenly_numbered, noted_in
from dinoskip.data.segmentation import IGNORE
from dinoskip.data.sets.kind import Archives, DatasetKind, Published, as_text, splits_of
from dinoskip.data.sets.signatures import Finding
from dinoskip.errors import DataError
from dinoskip_video.sequences import SequenceDataset, VideoSequence

LEAST_FRAMES = 3
"""The first is given, and neither it nor the last one is scored."""


def davis_2016(values: LabelValues) -> Finding | None:
    """Videos whose label maps have one object of value 255, as DAVIS 2016 has them."""
    if values.numbers[IGNORE] != IGNORE or IGNORE not in values.values or not set(values.values) <= {0, IGNORE}:
        return None
    text = "every label map holds 0 and 255 alone, as DAVIS 2016 does, and 255 is no object"
    return Finding("davis-numbering", "refused", text, "numbering=2016 reads 255 as the object")


class DavisLayout(DatasetKind):
    """Videos in the layout of DAVIS 2017."""

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the frames of a split."""
        folder = davis_folder(root)
        images = folder / "JPEGImages" / "480p"
        frames = [path for name in _names(folder, split) for path in _files(images / name, True).values()]
        return ImageFolder(images, tuple(path.relative_to(images).as_posix() for path in frames))

    def open_sequences(self, root: Path, split: str, faults: list[str] | None) -> SequenceDataset:
        """Open the videos that ``ImageSets/2017/SPLIT.txt`` names.

        Every frame needs a mask and every mask a frame, numbered without a gap, and a video 3 frames.
        """
        folder, sequences = davis_folder(root), []
        for video in _names(folder, split):
            with noted_in(faults):
                where = folder / "JPEGImages" / "480p" / video
                frames = _files(where, True)
                masks = _files(folder / "Annotations" / "480p" / video, False)
                both_ways(frames, masks, ("has no mask in Annotations", "has a mask and no frame"), where)
                evenly_numbered(frames, "frames", where)
                if len(frames) < LEAST_FRAMES:
                    raise DataError(f"{where}: {len(frames)} frames, {LEAST_FRAMES} are needed")
                sequences.append(VideoSequence(video, tuple(frames.values()), tuple(masks[stem] for stem in frames)))
        return SequenceDataset(self.dataset_name, split, tuple(sequences))


class DavisConfig(DavisLayout):
    """The folder ``DAVIS`` of DAVIS-2017-trainval-480p.zip, or the one above it."""

    archives = Archives(
        published=(
            Published(
                "https://data.vision.ee.ethz.ch/csergi/share/davis/DAVIS-2017-trainval-480p.zip",
                ("DAVIS/JPEGImages/480p", "DAVIS/Annotations/480p", "DAVIS/ImageSets/2017/val.txt"),
            ),
        ),
    )

    splits = splits_of("video", train=4_209, val=1_999)  # frames of 60 and 30 videos
    signatures = (davis_2016,)
    image_size = (480, 854)
    order = 40
    kind: Literal["davis"] = "davis"
    root: str = Field(description="folder DAVIS, or the one above it")
    numbering: Annotated[Literal["2017", "2016"], BeforeValidator(as_text)] = Field(
        "2017", description="of label maps: an object a value and 255 void; 2016: 255 is the one object"
    )

    @property
    def dataset_name(self) -> str:
        return f"davis{self.numbering}"

    def open_sequences(self, root: Path, split: str, faults: list[str] | None) -> SequenceDataset:
        """Open the videos of a list; by the numbering of 2016 each has one object."""
        opened = super().open_sequences(root, split, faults)
        one = self.numbering == "2016"
        return replace(opened, sequences=tuple(replace(video, one_object=one) for video in opened.sequences))


def davis_folder(root: Path) -> Path:
    """Find the folder with ``JPEGImages/480p``: ``root`` or ``root/DAVIS``. Raises :class:`DataError`."""
    return folder_with("JPEGImages/480p", root, "DAVIS", "DAVIS-2017-trainval-480p.zip")


def _files(folder: Path, images: bool) -> dict[str, Path]:
    """Files of a folder by name without extension, in order: images, or PNG masks."""
    require_folder(folder, "the frames of a video" if images else "the masks of a video")
    named = [path for path in folder.iterdir() if is_image_name(path.name) and (images or path.suffix == ".png")]
    return {path.stem: path for path in sorted(named, key=lambda path: name_key(path.name))}


def _names(folder: Path, split: str) -> list[str]:
    return read_names(folder / "ImageSets" / "2017" / f"{split}.txt", "video")
