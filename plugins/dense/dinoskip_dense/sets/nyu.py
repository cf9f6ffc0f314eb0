"""Kinds ``nyu`` and ``nyu_normals``: NYU Depth V2 (Silberman et al. 2012) as its two common benchmarks have it.

``nyu`` has the lists of BTS (Lee et al. 2019), 24,231 training images and 654 test images with depth in millimetres.
``nyu_normals`` has what probe3d reads (El Banani et al. 2024): GeoNet's training files and the 654 labelled images of
the test split.
"""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import name_key, read_text, require_folder
from dinoskip.data.schema import finite, noted_in, unique, violated
from dinoskip.data.sets.kind import Archives, DatasetKind, Published, splits_of
from dinoskip.data.sets.pairs import known_split
from dinoskip.errors import DataError, guard
from dinoskip.io.arrays import read_arrays
from dinoskip.io.files import confined, read_regular
from dinoskip_dense.geometry import DepthDataset, LabelledNormals, NormalsDataset
from dinoskip_dense.sets.nyu_files import LABELLED, TEST, TRAIN, matlab, pictures_of_hdf5

LISTS = {
    "train": ("nyu_train.txt", "nyudepthv2_train_files_with_gt.txt", "eigen_train_files_with_gt.txt"),
    "test": ("nyu_test.txt", "nyudepthv2_test_files_with_gt.txt", "eigen_test_files_with_gt.txt"),
}
"""The last of each is of KITTI."""
FOLDERS = {"train": ("", "sync", "train", "raw"), "test": ("", "official_splits/test", "test", "raw")}
"""Below the root, where the names of a list begin."""
_KITTIS = ("data_depth_annotated/train", "data_depth_annotated/val", "data_depth_annotated", "train", "val")
"""Folders of KITTI's depth maps, whose names begin elsewhere than those of images; one list has maps in both parts."""
FARTHEST = 10.0  # metres: what the sensor gives beyond it is not used
GEONET_MEANS = (122.175, 116.169, 103.508)  # GeoNet's files hold an image less twice these
MAX_FILE = 256 << 20  # bytes of an image with depth and normals; those of 480 × 640 pixels have at most 17 MB
NOT_USED = (21_181, 6_919)  # of GeoNet's files in sorted order, as probe3d leaves them out


def _paths_of(root: Path, split: str) -> list[tuple[Path, Path]]:
    """Images and depth maps that a list names, in the order of the image names; those without a depth are left out."""
    known_split("nyu", split, tuple(LISTS))
    require_folder(root, f"NYU Depth V2 with {LISTS[split][0]}")
    lists = [root / name for name in LISTS[split] if (root / name).is_file()]
    if not lists:
        raise DataError(f"{root / LISTS[split][0]}: no such list", _advice(root))
    lines = [_words(line) for line in read_text(lists[0], "list of images").splitlines()]
    short = next((i for i, line in enumerate(lines, 1) if len(line) == 1), None)
    if short is not None:
        raise DataError(f"{lists[0]}:{short}: a line is IMAGE DEPTH [FOCAL LENGTH]")
    names = [(line[0].lstrip("/\\"), line[1].lstrip("/\\")) for line in lines if line and line[1] != "None"]
    unique((image for image, _ in names), "image", lists[0])
    if not names:
        raise DataError(f"{lists[0]}: names no image with a depth map")
    first = confined(Path(), names[0][0], lists[0])
    folder = next((root / subfolder for subfolder in FOLDERS[split] if (root / subfolder / first).is_file()), root)
    pairs = ((confined(folder, image, lists[0]), _depth_path(root, folder, depth, lists[0])) for image, depth in names)
    return sorted(pairs, key=lambda pair: name_key(str(pair[0])))


def _words(line: str) -> list[str]:
    """The words of a line: divided by space, or where there is none by semicolons or commas, as tables are saved."""
    words = line.split()
    return words if len(words) != 1 else [word for word in re.split("[;,]", words[0]) if word]


def _depth_path(root: Path, folder: Path, name: str, listed: Path) -> Path:
    """Return the path of a depth map: beside the images, or in the folders of KITTI."""
    beside = confined(folder, name, listed)
    if listed.name != LISTS["train"][-1] and listed.name != LISTS["test"][-1]:
        return beside
    return next((path for part in _KITTIS if (path := confined(root / part, name, listed)).is_file()), beside)


def _advice(root: Path) -> str:
    """Return the advice for a folder without a list, which depends on the files that are in it."""
    held = (root / LABELLED).is_file() or next(iter((*root.glob("*/*/*.h5"), *root.glob("*/*/*/*.h5"))), None)
    if held:
        return (
            f"dinoskip data prepare nyu --out {root} writes it from HDF5 (for {LABELLED} it needs splits.mat beside it)"
        )
    return "get the lists of BTS: image, depth map, focal length"


class NyuConfig(DatasetKind):
    """NYU Depth V2 by the lists of BTS: ``nyu_train.txt``, ``nyu_test.txt`` and the files that they name.

    Lists of KITTI are read, too, with ``outdoor`` and 256 for ``per_metre``.
    """

    archives = Archives(
        published=(
            Published("http://horatio.cs.nyu.edu/mit/silberman/nyu_depth_v2/nyu_depth_v2_labeled.mat", (TRAIN, TEST)),
            Published("http://horatio.cs.nyu.edu/mit/silberman/indoor_seg_sup/splits.mat", (TRAIN, TEST)),
        ),
        in_place=(".mat", ".h5"),
        finish=pictures_of_hdf5,
    )

    splits = splits_of("depth", train=24_231, test=654)
    image_size = (480, 640)
    order = 10
    kind: Literal["nyu"] = "nyu"
    root: str = Field(description="folder with the lists nyu_train.txt and nyu_test.txt and the scenes' folders")
    per_metre: float = Field(
        1000.0, gt=0, description="value of a metre in depth maps: 1000 (millimetres), 5000, 256, ..."
    )
    outdoor: bool = Field(False, description="streets, as of KITTI, not rooms: depth up to 100 m is right")

    @property
    def dataset_name(self) -> str:
        return "kitti" if self.outdoor else "nyu"

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split that have a depth map."""
        return ImageFolder(root, tuple(image.relative_to(root).as_posix() for image, _ in _paths_of(root, split)))

    def open_depth(self, root: Path, split: str, faults: list[str] | None) -> DepthDataset:
        opened = depth_of_lists(root, split, self.dataset_name, faults)
        return replace(opened, per_metre=self.per_metre, outdoor=self.outdoor)


def depth_of_lists(root: Path, split: str, name: str, faults: list[str] | None) -> DepthDataset:
    """Open a split of a folder in the layout of BTS; ``faults`` as for every kind."""
    kept = []
    for pair in _paths_of(root, split):
        with noted_in(faults):
            if missing := next((path for path in pair if not path.is_file()), None):
                raise DataError(f"{missing}: no such file, the list of {split} names it")
            kept.append(pair)
    ids = tuple(image.relative_to(root).as_posix() for image, _ in kept)
    return DepthDataset(name, split, ids, tuple(image for image, _ in kept), tuple(depth for _, depth in kept))


# --- surface normals ---------------------------------------------------------------------------------


def _labelled(image: NDArray[Any], depth: NDArray[Any], normals: NDArray[Any], path: Path) -> LabelledNormals:
    """Normals of length 1, known where there is depth up to 10 m and a direction; :class:`DataError` naming the file.

    ``image`` is uint8 (H, W, 3) and all values are finite, normals where there is no depth aside.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise violated(path, f"image is {image.dtype} {image.shape}, expected uint8 (height, width, 3)")
    for values, quantity, shape in ((depth, "depths", image.shape[:2]), (normals, "normals", image.shape)):
        if values.dtype.kind not in "fiu":
            raise violated(path, f"{quantity} are not numbers but {values.dtype}")
        if values.shape != shape:
            raise violated(path, f"{quantity} {values.shape} do not fit an image of {image.shape[:2]}")
    finite(depth, "depths", path)
    valid = (depth > 0) & (depth <= FARTHEST)
    finite(normals[valid], "normals", path)
    length = np.linalg.norm(normals, axis=-1)
    unit = np.divide(normals, length[..., None], out=np.zeros(normals.shape), where=length[..., None] > 0)
    return LabelledNormals(image, unit.astype(np.float32), valid & (length > 0))


def _of_geonet(path: Path, *names: str) -> list[NDArray[Any]]:
    """The first 480 × 640 pixels of these arrays of a MATLAB file."""
    with guard(path, "MATLAB file"):
        content = read_regular(path, MAX_FILE)
        declared = {name: shape for name, shape, _ in matlab().whosmat(io.BytesIO(content))}
        if missing := [name for name in names if name not in declared]:
            raise DataError(f"{path}: holds no array {missing[0]!r}")
        if (size := 8 * sum(math.prod(declared[name]) for name in names)) > MAX_FILE:
            raise DataError(f"{path}: refused: its arrays have {size:,} bytes, more than {MAX_FILE:,}")
        arrays = matlab().loadmat(io.BytesIO(content), variable_names=names)
        return [np.asarray(arrays[name])[:480, :640] for name in names]


def load_geonet(path: Path, _: Path) -> LabelledNormals:
    """Read one of GeoNet's MATLAB files: ``img``, ``depth`` in metres, ``norm``; the first 480 × 640 pixels."""
    image, depth, normals = _of_geonet(path, "img", "depth", "norm")
    with guard(path, "image of GeoNet"):
        image = image + 2 * np.array(GEONET_MEANS)
        finite(image, "pixels", path)
    return _labelled(np.clip(image, 0, 255).astype(np.uint8), np.nan_to_num(depth), normals, path)


def load_labelled(path: Path, _: Path) -> LabelledNormals:
    """Read a labelled image from its .npz: ``image`` uint8 (H, W, 3), ``depth`` in metres, ``normals`` (H, W, 3)."""
    content = read_arrays(path, "image", "depth", "normals", limit=MAX_FILE)
    return _labelled(content["image"], content["depth"], content["normals"], path)


def load_depth_beside(path: Path) -> NDArray[np.float32]:
    """Read the depth in metres, float32 (H, W), from a file of normals; 0 where it is not measured."""
    if path.suffix == ".mat":
        depth = _of_geonet(path, "depth")[0]
    else:
        depth = read_arrays(path, "depth", limit=MAX_FILE)["depth"]
    return np.nan_to_num(depth.astype(np.float32))


class NyuNormalsConfig(DatasetKind):
    """Surface normals of NYU Depth V2: ``geonet`` with GeoNet's .mat files and ``test`` with .npz."""

    splits = splits_of("normals", train=30_814, test=654)  # as probe3d has them
    image_size = (480, 640)
    order = 20
    kind: Literal["nyu_normals"] = "nyu_normals"
    root: str = Field(description="folder with geonet/*.mat and test/*.npz")

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Refused: the images lie inside the files of their normals."""
        raise DataError(f"{root}: the images of {self.kind} lie inside its .mat and .npz files", "use kind nyu")

    def open_normals(self, root: Path, split: str, faults: list[str] | None) -> NormalsDataset:
        """Open ``train`` or ``test``; two of GeoNet's files are left out where there are as many as published."""
        known_split(self.kind, split, ("train", "test"))
        folder, ending = (root / "geonet", ".mat") if split == "train" else (root / "test", ".npz")
        require_folder(folder, "GeoNet's .mat files" if split == "train" else "the labelled images as .npz")
        paths = sorted(folder.glob(f"*{ending}"), key=lambda path: name_key(path.name))
        if not paths:
            raise DataError(f"{folder}: holds no {ending} file")
        kept = [path for i, path in enumerate(paths) if split != "train" or i not in NOT_USED]
        ids, files = tuple(path.stem for path in kept), tuple(kept)
        load = load_geonet if split == "train" else load_labelled
        return NormalsDataset(self.dataset_name, split, ids, files, files, load, load_depth_beside)
