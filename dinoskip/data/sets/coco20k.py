"""Kind ``coco20k``: the part of COCO's train2014 that object discovery is measured on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import read_text
from dinoskip.data.schema import unique
from dinoskip.data.sets.coco_json import CocoDetection, ListedImage, images_below, load_coco, with_boxes
from dinoskip.data.sets.kind import Archives, DatasetKind, Published, splits_of
from dinoskip.data.sets.pairs import COCO_SITE, coco_images
from dinoskip.errors import DataError
from dinoskip.io.files import confined

LIST = "coco_20k_filenames.txt"
LIST_MD5 = "133cea5ffcea93dccbaeb62c38b24e7c"
ANNOTATIONS = "annotations/instances_train2014.json"


def read_coco20k_list(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the file names of a list (``train2014/NAME.jpg``, one a line), and whether it is the published one."""
    if not path.exists():
        raise DataError(
            f"{path}: no such image list", "it is datasets/coco_20k_filenames.txt of github.com/valeoai/LOST"
        )
    content = read_text(path, "image list").replace("\r\n", "\n")  # the same list, saved on Windows
    lines = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not lines:
        raise DataError(f"{path}: the image list is empty")
    names = tuple(confined(path.parent, line, path).name for line in lines)
    unique(names, "image", path)
    return names, hashlib.md5(content.encode(), usedforsecurity=False).hexdigest() == LIST_MD5


def coco20k(root: str | Path, filename: str = LIST, *, faults: list[str] | None = None) -> CocoDetection:
    """Open COCO20k: 19,817 images of train2014, non-crowd boxes of instances_train2014.json.

    ``root`` holds ``train2014/`` (or ``images/train2014/``), ``annotations/`` and the list. A list that is not the
    published one (md5) is named in the split, which is in every row. Errors as :func:`coco_json`.
    """
    root = Path(root)
    folder, listed, path = coco_images(root, "train2014"), root / filename, root / ANNOTATIONS
    names, published = read_coco20k_list(listed)
    index = load_coco(path)
    unique((entry.get("file_name") for entry in index.images.values()), "file_name", path)
    numbers = {entry.get("file_name"): number for number, entry in index.images.items()}
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise DataError(f"{listed}: {unknown[0]!r} is not an image of {path.name} ({len(unknown)} are not)")
    split = "train2014" if published else f"{Path(filename).stem}, not the published list"
    files = [ListedImage(numbers[name], Path(name).stem, folder / name) for name in names]
    return with_boxes(index, path, files, {"name": "coco20k", "split": split}, (listed,), faults)


class Coco20kConfig(DatasetKind):
    """A COCO folder with train2014, annotations/instances_train2014.json and the published list of file names."""

    archives = Archives(
        published=(
            Published(f"{COCO_SITE}/zips/train2014.zip", ("train2014",), "0da8c0bd3d6becc4dcb32757491aca88"),
            Published(
                f"{COCO_SITE}/annotations/annotations_trainval2014.zip",
                (ANNOTATIONS,),
                "0a379cfc70b0e71301e0f377548639bd",
            ),
            Published(f"https://raw.githubusercontent.com/valeoai/LOST/master/datasets/{LIST}", (LIST,), LIST_MD5),
        ),
    )

    splits = splits_of("detection", train2014=19_817)
    kind: Literal["coco20k"] = "coco20k"
    root: str = Field(description="COCO folder with train2014 and annotations")
    filenames: str = Field(LIST, description="the published list of file names, relative to root")

    @property
    def paper_name(self) -> str:
        """As in Cutting the Skip."""
        return "COCO20k"

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of the list, whatever the split."""
        return images_below(root, self.open_detection(root, split, None))

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        """Open the list with its boxes, whatever the split."""
        dataset, listed = coco20k(root, self.filenames, faults=faults), root / self.filenames
        if faults is not None and not self.skip_broken and not read_coco20k_list(listed)[1]:
            faults.append(f"{listed}: not the published list: its md5 is not {LIST_MD5}")
        return dataset
