"""Read a FeatureStore: frozen features of every block as one NumPy memory map a block.

A store is a directory, published whole (see docs/features.md)::

    features.json           ids, blocks, facet, norm, dtype, grids, image sizes, hashes
    tokens_block{b}.npy     (N, T, C) for one image size, (sum of T, C) with offsets for native sizes
    cls_block{b}.npy        (N, C), where the backbone has a class token; of several facets tokens_mlp_block{b}.npy, ...
    provenance.json         the network's spec and file, images, version, kernels, date: in no manifest
    MANIFEST.json           size and sha256 of every other file, written last
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError, model_validator

from dinoskip.errors import ConfigError, DataError
from dinoskip.features.npy_files import (
    VERIFIED_TOGETHER,
    ArrayLocation,
    FileContent,
    contents,
    has_recorded_hash,
    locate_array,
    verification_wanted,
)
from dinoskip.features.transform import Transform
from dinoskip.io.files import MANIFEST, read_json, read_manifest, verify_manifest
from dinoskip.results.rows import normalisation_of

FORMAT = 1  # higher where a reader of this one would misread a store; it refuses others
DESCRIPTION = "features.json"
PROVENANCE = "provenance.json"  # beside what the manifest has: a date would make equal stores differ
OLD_DESCRIPTION = "manifest.json"  # until 0.1: on a disk that ignores case the same name as MANIFEST.json
STORED: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}


def tokens_name(block: int, facet: str = "") -> str:
    """Name of the array of a block's patch tokens; ``facet`` where the store holds several."""
    return f"tokens_{facet}_block{block}" if facet else f"tokens_block{block}"


def cls_name(block: int, facet: str = "") -> str:
    """Name of the array of a block's class tokens; ``facet`` where the store holds several."""
    return f"cls_{facet}_block{block}" if facet else f"cls_block{block}"


def as_float(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Decode stored features (float16, float32, or bfloat16 kept as uint16) to a float32 copy."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return np.array(stored, dtype=np.float32)


def _of_facet(manifest: dict[str, Any], facet: str | None, path: Path) -> dict[str, Any]:
    """Return a store's description for one facet (None: the first). Raises :class:`DataError` if the store lacks it."""
    held = manifest["facet"]
    facets = [held] if isinstance(held, str) else held
    if facet is not None and facet not in facets:
        raise DataError(f"{path}: holds no facet {facet}", f"it has {', '.join(facets)}")
    if isinstance(held, str):
        return manifest
    at = facets.index(facet or facets[0])
    return {**manifest, "facets": facets, **{name: manifest[name][at] for name in ("facet", "norm", "dim")}}


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Pair = tuple[Count, Count]


class StoreDescription(BaseModel):
    """Fields that ``features.json`` must have to be used; other keys are ignored."""

    model_config = ConfigDict(strict=False, extra="ignore")
    ids: tuple[str, ...] = Field(min_length=1)
    blocks: Annotated[tuple[StrictInt, ...], Field(min_length=1)]
    facet: str | tuple[str, ...]
    norm: str | tuple[str, ...]
    dtype: Literal["float16", "bfloat16", "float32"]
    layout: Literal["fixed", "ragged"]
    tokens: StrictBool
    cls: StrictBool
    depth: Count
    dim: Count | tuple[Count, ...]
    patch_size: Count
    size_multiple: Count | None = None
    levels: dict[str, Pair] | None = None
    transform: Transform
    grids: tuple[Pair, ...]
    image_sizes: tuple[Pair, ...]
    weights_hash: str
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    positions: str = ""
    key: str

    @model_validator(mode="after")
    def _agrees(self) -> StoreDescription:
        if len(self.grids) != (len(self.ids) if self.layout == "ragged" else 1):
            raise ValueError(f"{len(self.grids)} grids of {len(self.ids)} images, layout {self.layout}")
        if len(self.image_sizes) != len(self.ids):
            raise ValueError(f"{len(self.image_sizes)} image sizes of {len(self.ids)} images")
        self._fits_the_images()
        facets, norms, widths = (
            len(value) if isinstance(value, tuple) else 0 for value in (self.facet, self.norm, self.dim)
        )
        if not facets == norms == widths or facets == 1:
            raise ValueError("facet, norm and dim have different numbers of entries")
        if self.levels is not None and list(self.levels) != list(map(str, self.blocks)):
            raise ValueError("levels are not those of the blocks")
        if any((self.size_multiple or 0) % stride for stride, _ in (self.levels or {}).values()):
            raise ValueError(f"images of {self.size_multiple} pixels have no whole cells at every level")
        if sorted(set(self.blocks)) != list(self.blocks) or not 1 <= self.blocks[0] <= self.blocks[-1] <= self.depth:
            raise ValueError(f"blocks {list(self.blocks)} are not ascending numbers of 1..{self.depth}")
        return self

    def _fits_the_images(self) -> None:
        """Ids come once, and grids are what the transform makes of the images' sizes."""
        if twice := next((name for name, count in Counter(self.ids).items() if count > 1), None):
            raise ValueError(f"image {twice!r} is listed twice")
        if self.transform.ragged != (self.layout == "ragged"):
            raise ValueError(f"layout {self.layout} of transform {self.transform.mode}")
        for name, grid, (height, width) in zip(
            self.ids, self.grids, self.image_sizes, strict=False
        ):  # one, if all alike
            try:
                sides = self.transform.padded_size(height, width, self.size_multiple or self.patch_size)
            except ConfigError as error:
                raise ValueError(error.message) from None
            if grid != tuple(side // self.patch_size for side in sides):
                raise ValueError(
                    f"grid of image {name!r} is {grid[0]}×{grid[1]}, of {height}×{width} pixels and patches of "
                    f"{self.patch_size}"
                )


@dataclass(frozen=True)
class FeaturePart:
    """Some images of a set of features, by their numbers in it, in the order of the store that ``read`` gives."""

    images: list[int]
    read: Callable[[], FeatureStore]


class FeatureSet(ABC):
    """Description of the features of N images, before any is read: the base class of stores and of windows.

    Attributes
    ----------
    path, ids, blocks
        Directory, or what stands for it in messages; image ids in order; block numbers 1..depth, ascending.
    dtype, facet, norm
        As exported: float16 | bfloat16 | float32; out | key | query | value | attn | mlp | hidden | ...; none | final |
        layer.
    facets
        All that the same export holds, ``facet`` among them.
    weights_hash, normalisation, positions, transform, patch_size, dim, depth
        Of the backbone; mean and deviation of its images as text, and its rule of positions, "" where not known (as
        rows have them, :class:`dinoskip.results.rows.EvalResult`); how images were sized; pixels a patch; channels C;
        number of blocks of the backbone.
    ragged, offsets
        Whether images keep their own size; then image i has rows offsets[i]:offsets[i+1] (int64 (N+1,)), else None.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = Path(path)
        self.manifest = manifest
        self.ids: tuple[str, ...] = tuple(manifest["ids"])
        self.blocks: tuple[int, ...] = tuple(manifest["blocks"])
        self.dtype: str = manifest["dtype"]
        self.facet: str = manifest["facet"]
        self.facets: tuple[str, ...] = tuple(manifest.get("facets", [self.facet]))
        self.norm: str = manifest["norm"]
        self.weights_hash: str = manifest["weights_hash"]
        mean, std = manifest.get("mean"), manifest.get("std")
        self.normalisation = normalisation_of(mean, std) if mean and std else ""
        self.positions = str(manifest.get("positions", ""))
        self.transform = Transform.model_validate(manifest["transform"])
        self.patch_size: int = manifest["patch_size"]
        self.dim: int = manifest["dim"]
        self.depth: int = manifest["depth"]
        self.key: str = manifest["key"]
        self.ragged: bool = manifest["layout"] == "ragged"
        counts = [h * w for h, w in manifest["grids"]]
        self.offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]) if self.ragged else None

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.ids)

    def grid(self, i: int) -> tuple[int, int]:
        """Return (rows, columns) of image ``i``'s tokens."""
        h, w = self.manifest["grids"][i if self.ragged else 0]
        return int(h), int(w)

    def image_size(self, i: int) -> tuple[int, int]:
        """Return (height, width) in pixels of the original image ``i``."""
        h, w = self.manifest["image_sizes"][i]
        return int(h), int(w)

    @abstractmethod
    def of_equal_grids(self) -> tuple[FeatureSet, ...]:
        """Features of the blocks that share grid and width, one each; these themselves where all blocks do."""

    @abstractmethod
    def parts(self, done: NDArray[np.bool_] | None = None) -> Iterator[FeatureStore]:
        """Yield stores of some of the images each, which together hold all but those of ``done``, bool (N,).

        A part is read before the next is asked for: its arrays are there no longer then. Images have the order of
        these features where all have one size; else each part says by its ``ids`` which it has.
        """

    @abstractmethod
    def shares(self, images: int) -> list[FeaturePart]:
        """Divide all images into parts of about ``images`` each, which may be read in any order and by any process."""


class FeatureStore(FeatureSet):
    """Features of N images at several blocks; made by :func:`dinoskip.features.export`. See :class:`FeatureSet`."""

    def __init__(self, path: Path, manifest: dict[str, Any], hashes: Mapping[str, str] | None = None) -> None:
        super().__init__(path, manifest)
        self._hashes = hashes  # sha256 by file, None: nothing is verified
        self._maps: dict[str, NDArray[Any]] = {}
        self._prefix = self.facet if len(self.facets) > 1 else ""  # in the names of arrays

    @classmethod
    def open(cls, path: str | Path, *, facet: str | None = None, verify: bool | None = None) -> FeatureStore:
        """Open a published store, or the one in the folder of a study's stage ``features``.

        :class:`DataError` if it is not one, or its files do not fit its manifest.

        ``facet``: which, of a store that holds several; None: the first.

        ``verify``: whether a file is compared with its recorded sha256, and looked through for values that are not
        finite, when it is first read in this process; None: unless the variable ``DINOSKIP_VERIFY`` is 0.
        """
        path = Path(path)
        if (path / "store" / MANIFEST).is_file():  # a stage's folder
            path = path / "store"
        if not (path / MANIFEST).is_file():
            raise DataError(f"{path}: not a finished feature store (no {MANIFEST})", "run the export again")
        published = read_manifest(path)
        if (other := published.info.get("format", "npy")) != "npy":
            raise DataError(f"{path}: a store of version 0.1 in format {other}", "export it again, then convert it")
        described = path / (DESCRIPTION if DESCRIPTION in published.files else OLD_DESCRIPTION)
        wanted = verification_wanted() if verify is None else verify
        hashes = {name: str(entry["sha256"]) for name, entry in published.files.items()}
        if wanted and described.is_file() and not has_recorded_hash(described, hashes.get(described.name, "")):
            raise DataError(f"{described}: content differs from its recorded sha256", "export it again")
        manifest = read_json(described)
        if not isinstance(manifest, dict) or manifest.get("kind") != "features" or manifest.get("format") != FORMAT:
            raise DataError(f"{described}: not a feature store of format {FORMAT}")
        try:
            StoreDescription.model_validate(manifest)
        except ValidationError as failure:
            first = failure.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            said = first["msg"].removeprefix("Value error, ")
            raise DataError(f"{described}: damaged: {field + ': ' if field else ''}{said}") from None
        store = cls(path, _of_facet(manifest, facet, path), hashes if wanted else None)
        for part in store.of_equal_grids():
            for block in part.blocks:
                if manifest["tokens"]:
                    part._locate(tokens_name(block, store._prefix), part._token_shape())
                if manifest["cls"]:
                    part._locate(cls_name(block, store._prefix), (len(store.ids), part.dim))
        return store

    def of_equal_grids(self) -> tuple[FeatureStore, ...]:
        """Stores of the blocks that share grid and width, over the same files."""
        alike: dict[tuple[int, int], list[int]] = {}
        for block, (stride, width) in self.manifest.get("levels", {}).items():
            alike.setdefault((stride, width), []).append(int(block))
        if not alike:
            return (self,)
        parts = []
        for (stride, width), blocks in alike.items():
            grids = [[side * self.patch_size // stride for side in grid] for grid in self.manifest["grids"]]
            part = {**self.manifest, "blocks": blocks, "dim": width, "patch_size": stride, "grids": grids}
            del part["levels"]
            parts.append(FeatureStore(self.path, part, self._hashes))
        return tuple(parts)

    @classmethod
    def of_arrays(cls, where: Path, manifest: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FeatureStore:
        """A store of arrays in memory, with names, shapes and dtypes as on disk; ``where`` is for messages."""
        store = cls(where, manifest)
        store._maps = dict(arrays)
        return store

    def drop(self) -> None:
        """Let go of all arrays; those in memory only are gone."""
        self._maps.clear()

    def parts(self, done: NDArray[np.bool_] | None = None) -> Iterator[FeatureStore]:
        """Yield the store itself: all of it is at hand, so all of it is one part, unless all is done."""
        if done is None or not done.all():
            yield self

    def shares(self, images: int) -> list[FeaturePart]:
        """Divide all images into parts of ``images`` that follow one another, the last of fewer."""
        starts = range(0, len(self), images)
        return [FeaturePart(list(range(len(self)))[at : at + images], partial(self._some, at, images)) for at in starts]

    def _some(self, first: int, count: int) -> FeatureStore:
        """A store of images that follow one another, over the same files."""
        of = slice(first, min(first + count, len(self)))
        manifest = {**self.manifest, "ids": list(self.ids[of]), "image_sizes": self.manifest["image_sizes"][of]}
        rows = of
        if self.offsets is not None:
            manifest["grids"] = self.manifest["grids"][of]
            rows = slice(int(self.offsets[of.start]), int(self.offsets[of.stop]))
        arrays = {}
        for block in self.blocks:
            if self.manifest["tokens"]:
                arrays[tokens_name(block, self._prefix)] = self.tokens(block)[rows]
            if self.manifest["cls"]:
                whole = self._map(cls_name(block, self._prefix), (len(self.ids), self.dim))
                arrays[cls_name(block, self._prefix)] = whole[of]
        return FeatureStore.of_arrays(self.path, manifest, arrays)

    @overload
    def tokens(self, block: int) -> NDArray[Any]: ...
    @overload
    def tokens(self, block: int, i: int) -> NDArray[np.float32]: ...
    def tokens(self, block: int, i: int | None = None) -> NDArray[Any]:
        """Return the memory map of a block as stored, or image ``i``'s tokens as float32 (T, C), a copy.

        The map is (N, T, C), ragged (sum of T, C); bfloat16 appears as uint16 (:func:`as_float` decodes it).
        """
        self._has(block, "tokens")
        stored = self._map(tokens_name(block, self._prefix), self._token_shape())
        if i is None:
            return stored
        if self.offsets is None:
            return as_float(stored[i])
        i = range(len(self.ids))[i]
        return as_float(stored[self.offsets[i] : self.offsets[i + 1]])

    def cls(self, block: int, images: slice = slice(None)) -> NDArray[np.float32] | None:
        """Return the class tokens of a block as float32 (N, C), of some images or all; None if there are none."""
        if not self.manifest["cls"]:
            return None
        self._has(block, "cls")
        return as_float(self._map(cls_name(block, self._prefix), (len(self.ids), self.dim))[images])

    @property
    def provenance(self) -> dict[str, Any]:
        """The origin of the features: ``network``, ``input``, ``images``, ``date``, ``version``, ``kernels``.

        {} for stores in memory and for those of earlier versions. It is a note: nothing is computed from it.
        """
        if not (self.path / PROVENANCE).is_file():
            return {}
        said = read_json(self.path / PROVENANCE)
        return said if isinstance(said, dict) else {}

    def verify(self) -> list[str]:
        """Re-hash every file; return one line per problem, [] if all is as it was published."""
        return verify_manifest(self.path)

    def _has(self, block: int, what: str) -> None:
        if block not in self.blocks or not self.manifest[what]:
            raise DataError(
                f"{self.path}: holds no {what} of block {block}",
                f"it has blocks {', '.join(map(str, self.blocks))}"
                if self.manifest[what]
                else f"export with {what}=true",
            )

    def _token_shape(self) -> tuple[int, ...]:
        if self.offsets is not None:
            return (int(self.offsets[-1]), self.dim)
        h, w = self.grid(0)
        return (len(self.ids), h * w, self.dim)

    def _locate(self, name: str, shape: tuple[int, ...]) -> ArrayLocation:
        """Return an array's location. Raises :class:`DataError` unless dtype and shape are those of the manifest."""
        location = locate_array(self.path, name)
        if (location.dtype, location.shape) != (STORED[self.dtype], shape):
            raise DataError(
                f"{location.path}: {name} is {location.dtype} {location.shape}, the manifest says {self.dtype} {shape}"
            )
        return location

    def _map(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        if name not in self._maps:
            location = self._locate(name, shape)
            if self._hashes is not None:
                following = self._read_next(name)
                content, *_ = contents([location, *(self._locate(other, shape) for other in following)])
                self._refuse_other(name, location, content)
            self._maps[name] = location.map()
        return self._maps[name]

    def _read_next(self, name: str) -> list[str]:
        """Arrays of the same kind of the blocks after, which most readers read next: verified together with it."""
        of_block = tokens_name if name.startswith("tokens") else cls_name
        names = [of_block(block, self._prefix) for block in self.blocks]
        later = [other for other in names[names.index(name) + 1 :] if other not in self._maps]
        return [] if "levels" in self.manifest else later[: VERIFIED_TOGETHER - 1]  # levels differ in shape

    def _refuse_other(self, name: str, location: ArrayLocation, content: FileContent) -> None:
        """:class:`DataError` if a file that is about to be read is not what was published, or not finite."""
        if content.not_finite is not None:
            row = content.not_finite
            image = row if self.offsets is None or name.startswith("cls") else self._image_of(row)
            of = f"features of image {self.ids[image]!r}" if image < len(self.ids) else "numbers behind the last image"
            raise DataError(
                f"{location.path}: {of} are not finite",
                "the file is damaged, or its weights had diverged: delete this store and export it again",
            )
        if (self._hashes or {}).get(location.path.name) != content.sha256:
            raise DataError(
                f"{location.path}: content differs from its recorded sha256", "delete this store and export it again"
            )

    def _image_of(self, row: int) -> int:
        """The image that a row of a ragged array belongs to."""
        assert self.offsets is not None
        return int(np.searchsorted(self.offsets, row, side="right")) - 1
