"""NYU Depth V2 out of HDF5: its labelled set (a MATLAB 7.3 file) and the .h5 files of FastDepth, as pictures and lists.

Both become what the kind ``nyu`` reads: PNGs in 8 bits, depth in millimetres in 16 bits, and lists of BTS. Arrays are
read one image at a time, and no link in a file is followed. h5py is the extra ``hdf5``.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dinoskip.data.listing import name_key
from dinoskip.data.schema import finite, violated
from dinoskip.errors import ConfigError, DataError, guard
from dinoskip.io.files import open_regular, read_regular, write_bytes, write_text

LABELLED, SPLITS = "nyu_depth_v2_labeled.mat", "splits.mat"
TRAIN, TEST = "nyu_train.txt", "nyu_test.txt"
PICTURES = "pictures"  # the folder below the root that is made
_MOST_IMAGES, _MOST_SIDE = 10_000, 4096
_MOST_SPLITS = 1 << 20  # bytes of splits.mat, which has 3 KiB
_MILLIMETRES, _MOST_DEPTH = 1000, 65_535


def pictures_of_hdf5(root: Path) -> list[str]:
    """Write pictures and lists of what lies below ``root`` in HDF5, unless they are there; say in lines what was done.

    Raises :class:`DataError` naming a damaged file, and :class:`ConfigError` without h5py.
    """
    if (root / TRAIN).is_file() or (root / TEST).is_file():
        return []
    if (root / LABELLED).is_file() and (root / SPLITS).is_file():
        return _labelled(root)
    folder = next((one for one in (root, root / "nyudepthv2") if (one / "train").is_dir()), root)
    files = {split: sorted((folder / split).rglob("*.h5"), key=lambda path: name_key(str(path))) for split in _FOLDERS}
    return _fastdepth(root, folder, files) if all(files.values()) else []


_FOLDERS = {"train": TRAIN, "val": TEST}  # of FastDepth, which calls the test split val


def _labelled(root: Path) -> list[str]:
    lists = read_splits(root / SPLITS)
    with _opened(root / LABELLED) as opened:
        images, depths = (_array(opened, name, root / LABELLED) for name in ("images", "depths"))
        count = _checked_count(images.shape, depths.shape, root / LABELLED)
        for name, numbers in lists.items():
            if not all(1 <= number <= count for number in numbers):
                raise violated(root / SPLITS, f"{name} has numbers that are none of the {count} images")
        lines = []
        for number in range(1, count + 1):
            # MATLAB's arrays have their axes in the other order
            image, depth = images[number - 1].transpose(2, 1, 0), depths[number - 1].T
            lines.append(_write(root, f"labelled/{number:05d}", image, depth, root / LABELLED))
    for name, numbers in lists.items():
        write_text(root / name, "".join(lines[number - 1] for number in numbers))
    return [f"{LABELLED}: {count:,} images with depth, lists {TRAIN} and {TEST} by {SPLITS}"]


def _fastdepth(root: Path, folder: Path, files: dict[str, list[Path]]) -> list[str]:
    for split, paths in files.items():
        lines = []
        for path in paths:
            with _opened(path) as opened:
                rgb, depth = (_array(opened, name, path) for name in ("rgb", "depth"))
                _checked_count((1, *rgb.shape), (1, *depth.shape), path)
                name = path.relative_to(folder).with_suffix("").as_posix()
                lines.append(_write(root, name, rgb[()].transpose(1, 2, 0), depth[()], path))
        write_text(root / _FOLDERS[split], "".join(lines))
    counts = " and ".join(f"{len(paths):,} of {split}" for split, paths in files.items())
    return [f"{folder}: {counts} with depth, lists {TRAIN} and {TEST}"]


def read_splits(path: Path) -> dict[str, list[int]]:
    """Return the numbers of the labelled images, from 1, for each list; :class:`DataError` for another file."""
    with guard(path, "MATLAB file"):
        arrays = matlab().loadmat(
            io.BytesIO(read_regular(path, _MOST_SPLITS)), variable_names=("trainNdxs", "testNdxs")
        )
        numbers = {
            name: [int(number) for number in np.asarray(arrays[key]).ravel()]
            for name, key in ((TRAIN, "trainNdxs"), (TEST, "testNdxs"))
        }
    if set(numbers[TRAIN]) & set(numbers[TEST]) or not all(numbers.values()):
        raise violated(path, "its two splits share an image, or one of them is empty")
    return numbers


def matlab() -> Any:
    """Return the module scipy.io."""
    from scipy import io as scipy_io  # heavy; the kinds of data sets are listed without it

    return scipy_io


def _h5py(path: Path) -> Any:
    try:
        return importlib.import_module("h5py")  # an extra
    except ImportError as error:
        raise ConfigError(f"{path}: needs the package h5py", "pip install 'dinoskip[hdf5]'") from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    h5py = _h5py(path)
    with guard(path, "HDF5 file"), open_regular(path) as stream, h5py.File(stream, "r") as opened:
        yield opened


def _array(opened: Any, name: str, path: Path) -> Any:
    """An array that lies in the file itself; :class:`DataError` for a link, and if there is none."""
    h5py = _h5py(path)
    if not isinstance(opened.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{path}: holds no array {name!r}")
    array = opened[name]
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise DataError(f"{path}: {name!r} is no array of this file")
    return array


def _checked_count(images: Sequence[int], depths: Sequence[int], path: Path) -> int:
    """The number of images of arrays (N, 3, ...) and (N, ...) whose sides agree."""
    agree = len(images) == 4 and images[1] == 3 and tuple(depths) == (images[0], *images[2:])
    if not agree or not 0 < images[0] <= _MOST_IMAGES or max(images[2:]) > _MOST_SIDE:
        raise violated(path, f"images {tuple(images)} and depths {tuple(depths)} are not those of pictures")
    return int(images[0])


def _write(root: Path, name: str, image: NDArray[Any], depth: NDArray[Any], path: Path) -> str:
    """Write an image uint8 (H, W, 3) and its depth in metres (H, W); return the line of a list."""
    if image.dtype != np.uint8 or depth.dtype.kind != "f":
        raise violated(path, f"images are {image.dtype} and depths {depth.dtype}, expected uint8 and floats")
    finite(depth, "depths", path)
    millimetres = np.rint(np.clip(depth * _MILLIMETRES, 0, _MOST_DEPTH)).astype(np.uint16)
    for ending, pixels in (("", image), ("_depth", millimetres)):
        target = root / PICTURES / f"{name}{ending}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, _png(np.ascontiguousarray(pixels)))
    return f"{PICTURES}/{name}.png {PICTURES}/{name}_depth.png\n"


def _png(pixels: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()
