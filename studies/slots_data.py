"""The data of a slot, packed small: training photographs from a fixed list of names, boxes, masks; one ZIP file.

Layout, in which ``configs/results/slot.yaml`` names it: ``imagenette/{train,val}/CLASS/*``, ``boxed/`` with
``boxed.json`` (COCO's format), ``masks/{images,masks}/{train,val}`` with ``classes.txt``.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.listing import list_images
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets import AnyDataset, open_labels
from dinoskip.data.sets.coco_json import CocoJsonConfig
from dinoskip.data.sets.labels import DETECTION, SEGMENTATION
from dinoskip.data.sets.voc import VocConfig
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import atomic_path
from dinoskip.io.images import read_image

NAMES = Path(__file__).resolve().parents[1] / "docs" / "results" / "slots" / "names.txt.gz"
"""The training photographs of every slot, committed before the first one."""
SHORT_SIDE = 224  # of labelled images, fixed before the first slot
QUALITY = 80  # of their WebP: 350 + 200 images in 5 MiB
_COCO = (("val2017", "instances_val2017"), ("train2014", "instances_train2014"))
_DONE = ".unpacked"


@dataclass(frozen=True)
class Sources:
    """Folders of the published data: Imagenette (train and val), a VOCdevkit, a COCO folder."""

    imagenette: Path
    voc: Path
    coco: Path


# --- names -------------------------------------------------------------------------------------------


def choose(sizes: Mapping[str, int], budget: int) -> list[str]:
    """Return the names that fit into ``budget`` bytes, the same number of each class, the first by name.

    ``sizes`` are bytes by name, ``CLASS/IMAGE``. All names where all fit, whatever the classes' numbers.
    """
    if sum(sizes.values()) <= budget:
        return sorted(sizes)
    by_class: dict[str, list[str]] = {}
    for name in sorted(sizes):
        by_class.setdefault(name.partition("/")[0], []).append(name)
    chosen: list[str] = []
    for row in zip(*by_class.values(), strict=False):  # one of each class, until a class has no more
        budget -= sum(sizes[name] for name in row)
        if budget < 0:
            break
        chosen += row
    return sorted(chosen)


def sizes_below(folder: Path) -> dict[str, int]:
    """Bytes of the images below a folder, by name."""
    return {name: (folder / name).stat().st_size for name in list_images(folder)}


def write_names(names: Iterable[str], path: Path = NAMES) -> None:
    """Write a list of names, the same bytes for the same names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{name}\n" for name in names).encode(), mtime=0))


def read_names(path: Path = NAMES) -> list[str]:
    """Read a list of names."""
    return gzip.decompress(path.read_bytes()).decode().split()


# --- packing -----------------------------------------------------------------------------------------


def pack(sources: Sources, names: Iterable[str], out: Path, mib: float, each: int | None = None) -> dict[str, int]:
    """Write the ZIP; return its numbers of images, and its bytes.

    ``each``: no more images of any labelled set. Raises :class:`ConfigError` if it has more than ``mib`` MiB, which is
    what can be carried beside the rest.
    """
    counts = {"train": 0, "val": 0, "boxed": 0, "masks": 0}
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as temporary:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for split, listed in (("train", names), ("val", list_images(sources.imagenette / "val"))):
                for name in listed:
                    _add(archive, f"imagenette/{split}/{name}", (sources.imagenette / split / name).read_bytes())
                    counts[split] += 1
            counts["boxed"] = _add_boxed(archive, sources, each)
            counts["masks"] = _add_masks(archive, sources, each)
        size = temporary.stat().st_size
        if size > mib * 2**20:
            raise ConfigError(
                f"{out}: {size / 2**20:.1f} MiB, more than the {mib:g} that can be carried",
                "a shorter list: python -m studies.slots names --imagenette DIR --mib N",
            )
    return {**counts, "bytes": size}


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a member without a time: the same images give the same bytes."""
    archive.writestr(zipfile.ZipInfo(name), content)


def boxed_sets(sources: Sources) -> Iterator[tuple[str, DetectionDataset]]:
    """Every data set with boxes, with a short name."""
    kinds: dict[str, AnyDataset] = {
        f"voc{year}": VocConfig.model_validate({"root": str(sources.voc), "year": year}) for year in (2012, 2007)
    }
    for folder, name in _COCO:
        kinds[folder] = CocoJsonConfig(root=str(sources.coco / folder), annotations=f"../annotations/{name}.json")
    for name, kind in kinds.items():
        yield name, open_labels(DETECTION, kind, "trainval")


def _add_boxed(archive: zipfile.ZipFile, sources: Sources, each: int | None) -> int:
    """All images with boxes, difficult and truncated objects included; their boxes in COCO's format."""
    images: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    for name, opened in boxed_sets(sources):
        for index in range(len(opened) if each is None else min(each, len(opened))):
            found = opened.boxes(index)
            if not len(found):  # an image without an object can neither be hit nor missed
                continue
            picture, scale = _small(opened.path(index))
            number, file = len(images) + 1, f"{name}-{opened.path(index).stem}.webp"
            _add(archive, f"boxed/{file}", _webp(picture))
            images.append({"id": number, "file_name": file, "width": picture.width, "height": picture.height})
            for x1, y1, x2, y2 in (np.asarray(found, dtype=np.float64) * scale).tolist():
                box = {"id": len(boxes) + 1, "image_id": number, "category_id": 1, "iscrowd": 0}
                boxes.append({**box, "bbox": [round(v, 3) for v in (x1, y1, x2 - x1, y2 - y1)]})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "object"}]}
    _add(archive, "boxed/boxed.json", json.dumps(content).encode())
    return len(images)


def _add_masks(archive: zipfile.ZipFile, sources: Sources, each: int | None) -> int:
    """VOC2012's images with masks, brought to size with nearest labels, and the names of their classes."""
    kind, count = VocConfig(root=str(sources.voc), year=2012), 0
    for split in ("train", "val"):
        opened: SegmentationDataset = open_labels(SEGMENTATION, kind, split)
        for index in range(len(opened) if each is None else min(each, len(opened))):
            picture, _ = _small(opened.path(index))
            labels = Image.fromarray(opened.label(index).astype(np.uint8))
            stream = io.BytesIO()
            labels.resize(picture.size, Image.Resampling.NEAREST).save(stream, "PNG")
            name = opened.path(index).stem
            _add(archive, f"masks/images/{split}/{name}.webp", _webp(picture))
            _add(archive, f"masks/masks/{split}/{name}.png", stream.getvalue())
            count += 1
        if split == "train":
            _add(archive, "masks/classes.txt", "".join(f"{name}\n" for name in opened.class_names).encode())
    return count


def _small(path: Path) -> tuple[Image.Image, float]:
    """An image with a short side of :data:`SHORT_SIDE`, none enlarged, and the factor that brought it there."""
    picture = Image.fromarray(read_image(path))
    scale = min(1.0, SHORT_SIDE / min(picture.size))
    size = (round(picture.width * scale), round(picture.height * scale))
    return picture.resize(size, Image.Resampling.BICUBIC) if scale < 1 else picture, scale


def _webp(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=QUALITY)
    return stream.getvalue()


def unpacked(data: Path, work: Path) -> Path:
    """Return the folder of the data: ``data`` itself, or, of a ZIP, what is unpacked below ``work``, once."""
    if data.is_dir():
        return data
    if not zipfile.is_zipfile(data):
        raise DataError(f"{data}: neither a folder nor a ZIP file", "python -m studies.slots pack makes one")
    folder = work / "data"
    if not (folder / _DONE).is_file():
        with zipfile.ZipFile(data) as archive:
            archive.extractall(folder)
        (folder / _DONE).touch()
    return folder
