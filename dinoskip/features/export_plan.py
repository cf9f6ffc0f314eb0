"""Lay out an export before the first image is decoded: files, rows, batches, and the key that says what it is."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dinoskip.data.listing import content_marks, prefix_of
from dinoskip.errors import ConfigError, DataError
from dinoskip.features.store import FORMAT, STORED, cls_name, tokens_name
from dinoskip.features.transform import Transform
from dinoskip.io.files import hash_of, sha256_file
from dinoskip.io.images import image_size
from dinoskip.settings.specs import weights_file

if TYPE_CHECKING:
    from dinoskip.models import Backbone


class ImageSet(Protocol):
    """Images that can be exported: their ids, and the path of image i."""

    @property
    def ids(self) -> Sequence[str]:
        """Names of the images, each once."""
        ...

    def path(self, index: int, /) -> Path:
        """Return the file of an image."""
        ...


@dataclass(frozen=True)
class ExportSettings:
    """Settings of the features of each image: the arguments of :func:`dinoskip.features.export` of the same names."""

    blocks: Sequence[int] | str
    facet: str | Sequence[str] = "out"
    norm: str | Sequence[str] = "final"
    dtype: str = "float16"
    transform: Transform = field(default_factory=Transform)
    tokens: bool = True
    cls: bool = True
    batch_size: int = 16


@dataclass(frozen=True)
class ExportPlan:
    """Everything known before the first image is decoded."""

    manifest: dict[str, Any]
    transform: Transform
    paths: list[Path]
    batches: list[list[int]]  # image numbers; all of one input size
    sizes: list[tuple[int, int]]  # of the backbone's input, per image
    starts: dict[int, np.ndarray] | None  # by stride, of ragged arrays: first row of each image, and the last's end
    strides: dict[str, int]  # pixels a cell of each array of tokens
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype on disk and shape of each
    batch_size: int
    fingerprint: str = ""  # of ids and files of the images, in their order

    @property
    def state(self) -> dict[str, Any]:
        """Values that must be equal for an interrupted export to be continued."""
        return {"key": self.manifest["key"], "batch_size": self.batch_size, "format": "npy"}

    @property
    def size_multiple(self) -> int:
        """Number of pixels that sides of the backbone's input are a multiple of."""
        return int(self.manifest.get("size_multiple", self.manifest["patch_size"]))

    @property
    def nbytes(self) -> int:
        """Bytes that all arrays take on disk."""
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.arrays.values())

    def image_bytes(self, image: int) -> int:
        """Bytes of one image in all arrays."""
        (height, width), total = self.sizes[image], 0
        for name, (dtype, shape) in self.arrays.items():
            stride = self.strides.get(name)
            rows = 1 if stride is None else (height // stride) * (width // stride)
            total += rows * shape[-1] * dtype.itemsize
        return total

    def first_row(self, name: str, image: int) -> int:
        """First row of an image in an array."""
        return image if self.starts is None or name not in self.strides else int(self.starts[self.strides[name]][image])


def _chosen(blocks: Sequence[int] | str, numbers: Sequence[int]) -> list[int]:
    if isinstance(blocks, str):
        if blocks != "all":
            raise ConfigError(f"blocks: {blocks!r} is neither all nor a list of numbers")
        return list(numbers)
    chosen = sorted(set(blocks))
    if not chosen or not set(chosen) <= set(numbers):
        raise ConfigError(f"blocks: {list(blocks)} must be numbers of {numbers[0]}..{numbers[-1]}")
    return chosen


def _read_points(facet: str | Sequence[str], norm: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Facets, and the norm of each."""
    facets = [facet] if isinstance(facet, str) else list(facet)
    norms = [norm] * len(facets) if isinstance(norm, str) else list(norm)
    if not facets or len(set(facets)) != len(facets) or len(norms) != len(facets):
        raise ConfigError(f"facet: {facets} with norm {norms}: each once, and a norm for each")
    if ("hidden", "final") in zip(facets, norms, strict=True):
        raise ConfigError("norm: the final norm is not as wide as facet hidden", "use norm none or layer")
    return facets, norms


def plan_export(backbone: Backbone, dataset: ImageSet, settings: ExportSettings) -> ExportPlan:
    """Read every image's header and lay out files and batches. Batches are a function of the arguments alone."""
    dtype, transform, tokens, batch_size = settings.dtype, settings.transform, settings.tokens, settings.batch_size
    if dtype not in STORED:
        raise ConfigError(f"dtype: {dtype!r} is none of {', '.join(STORED)}")
    if batch_size < 1:
        raise ConfigError(f"batch_size: {batch_size} must be at least 1")
    ids = list(dataset.ids)
    paths = [Path(dataset.path(i)) for i in range(len(ids))]
    if not ids or len(set(ids)) != len(ids):
        raise DataError("features: there are no images" if not ids else "features: two images have the same id")
    chosen, patch = _chosen(settings.blocks, backbone.numbers), backbone.patch_size
    cls = settings.cls and backbone.has_class_token
    if not tokens and not cls:
        raise ConfigError("features: neither tokens nor class tokens would be stored")
    with ThreadPoolExecutor(8) as pool:
        originals = list(pool.map(image_size, paths))
    sizes = [transform.padded_size(height, width, backbone.size_multiple) for height, width in originals]
    ragged = transform.ragged
    facets, norms = _read_points(settings.facet, settings.norm)
    several = len(facets) > 1
    starts = {stride: _starts(sizes, stride) for stride in {backbone.stride(b) for b in chosen}} if ragged else None
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    strides: dict[str, int] = {}
    for name, block in product(facets, chosen):
        width, stride, prefix = backbone.width(name, block), backbone.stride(block), name if several else ""
        if tokens:
            rows = (int(starts[stride][-1]),) if starts else (len(ids), _cells(sizes[0], stride))
            strides[tokens_name(block, prefix)] = stride
            arrays[tokens_name(block, prefix)] = (STORED[dtype], (*rows, width))
        if cls:
            arrays[cls_name(block, prefix)] = (STORED[dtype], (len(ids), width))
    widths = [backbone.width(name, chosen[0]) for name in facets]
    manifest: dict[str, Any] = {
        "kind": "features", "format": FORMAT, "ids": ids, "blocks": chosen,
        "facet": facets if several else facets[0], "norm": norms if several else norms[0],
        "dtype": dtype, "layout": "ragged" if ragged else "fixed", "tokens": tokens, "cls": cls,
        "depth": backbone.depth, "dim": widths if several else widths[0], "patch_size": patch,
        "transform": transform.written,
        "grids": [[height // patch, width // patch] for height, width in (sizes if ragged else sizes[:1])],
        "image_sizes": [list(size) for size in originals], "weights_hash": backbone.weights_hash,
        "mean": list(backbone.mean), "std": list(backbone.std),
    }  # fmt: skip
    if backbone.size_multiple != patch or len(backbone.parts) > 1:
        manifest["size_multiple"] = backbone.size_multiple
        manifest["levels"] = {str(block): [backbone.stride(block), backbone.width("out", block)] for block in chosen}
    marks = content_marks(paths)
    manifest["key"] = hash_of([manifest, str(backbone.dtype), marks, *backbone.beside_weights])
    manifest["positions"] = backbone.positions  # beside the key, which has those that the weights do not say
    return ExportPlan(
        manifest, transform, paths, _batches(sizes, batch_size), sizes, starts, strides, arrays, batch_size,
        prefix_of(marks) + hash_of([ids, marks]),
    )  # fmt: skip


def provenance_of(backbone: Backbone, plan: ExportPlan, images: Mapping[str, Any]) -> dict[str, Any]:
    """Return a store's provenance beyond what determines its features: network spec and file, preprocessing, images.

    ``images`` are facts about the images that the exporter has, such as their format and root.
    """
    file, manifest = weights_file(backbone.spec), plan.manifest
    network = {"spec": backbone.spec, "weights_hash": manifest["weights_hash"], "precision": backbone.precision}
    if file is not None:
        network |= {"file": file.name, "file_sha256": sha256_file(file)}
    transform = {"transform": manifest["transform"], "mean": manifest["mean"], "std": manifest["std"]}
    return {
        "network": network,
        "input": {**transform, "positions": manifest["positions"]},
        "images": {**images, "number": len(plan.paths), "fingerprint": plan.fingerprint},
    }


def _cells(size: tuple[int, int], stride: int) -> int:
    return (size[0] // stride) * (size[1] // stride)


def _starts(sizes: Sequence[tuple[int, int]], stride: int) -> np.ndarray:
    """First row of each image, and the end of the last: int64 (N + 1,)."""
    return np.concatenate([[0], np.cumsum([_cells(size, stride) for size in sizes], dtype=np.int64)])


def _batches(sizes: Sequence[tuple[int, int]], batch_size: int) -> list[list[int]]:
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, size in enumerate(sizes):
        groups[size].append(i)
    return [group[at : at + batch_size] for group in groups.values() for at in range(0, len(group), batch_size)]
