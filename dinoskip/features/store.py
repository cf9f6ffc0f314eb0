"""Read a FeatureStore: frozen features of every block as one NumPy memory map a block.

A store is a directory, published whole (see docs/features.md)::

    manifest.json           ids, blocks, facet, norm, dtype, grids, image sizes, hashes
    tokens_block{b}.npy     (N, T, C) for one image size, (sum of T, C) with offsets for native sizes
    cls_block{b}.npy        (N, C), where the backbone has a class token
    MANIFEST.json           size and sha256 of every file, written last

or with the same arrays in block{b}.safetensors, or in features.h5, which are mapped alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dinoskip.errors import DataError
from dinoskip.features.file_formats import check_format, locate_array
from dinoskip.features.transform import Transform
from dinoskip.files import MANIFEST, read_json, read_manifest, verify_manifest

FORMAT = 1
STORED: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}


def tokens_name(block: int) -> str:
    """Name of the array of a block's patch tokens."""
    return f"tokens_block{block}"


def cls_name(block: int) -> str:
    """Name of the array of a block's class tokens."""
    return f"cls_block{block}"


def as_float(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Decode stored features (float16, float32, or bfloat16 kept as uint16) to a float32 copy."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return np.array(stored, dtype=np.float32)


class FeatureStore:
    """Features of N images at several blocks; made by :func:`dinoskip.features.export`.

    Attributes
    ----------
    path, file_format, ids, blocks
        Directory; npy | safetensors | hdf5; image ids in store order; block numbers 1..depth, ascending.
    dtype, facet, norm
        As exported: float16 | bfloat16 | float32; out | key | query | value; none | final | layer.
    weights_hash, transform, patch_size, dim, depth
        Of the backbone; how images were sized; pixels a patch; channels C; number of blocks of the backbone.
    ragged, offsets
        Whether images keep their own size; then image i has rows offsets[i]:offsets[i+1] (int64 (N+1,)), else None.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], file_format: str = "npy") -> None:
        self.path = Path(path)
        self.file_format = file_format
        self.manifest = manifest
        self.ids: tuple[str, ...] = tuple(manifest["ids"])
        self.blocks: tuple[int, ...] = tuple(manifest["blocks"])
        self.dtype: str = manifest["dtype"]
        self.facet: str = manifest["facet"]
        self.norm: str = manifest["norm"]
        self.weights_hash: str = manifest["weights_hash"]
        self.transform = Transform.model_validate(manifest["transform"])
        self.patch_size: int = manifest["patch_size"]
        self.dim: int = manifest["dim"]
        self.depth: int = manifest["depth"]
        self.key: str = manifest["key"]
        self.ragged: bool = manifest["layout"] == "ragged"
        counts = [h * w for h, w in manifest["grids"]]
        self.offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]) if self.ragged else None
        self._maps: dict[str, NDArray[Any]] = {}

    @classmethod
    def open(cls, path: str | Path) -> FeatureStore:
        """Open a published store; :class:`DataError` if it is not one, or its files do not fit its manifest."""
        path = Path(path)
        if not (path / MANIFEST).is_file():
            raise DataError(f"{path}: not a finished feature store (no {MANIFEST})", "run the export again")
        file_format = read_manifest(path)["info"].get("format", "npy")
        check_format(file_format)
        manifest = read_json(path / "manifest.json")
        if not isinstance(manifest, dict) or manifest.get("kind") != "features" or manifest.get("format") != FORMAT:
            raise DataError(f"{path / 'manifest.json'}: not a feature store of format {FORMAT}")
        try:
            store = cls(path, manifest, file_format)
            for block in store.blocks:
                if manifest["tokens"]:
                    store._map(tokens_name(block), store._token_shape())
                if manifest["cls"]:
                    store._map(cls_name(block), (len(store.ids), store.dim))
        except (KeyError, TypeError, ValidationError) as error:
            raise DataError(f"{path / 'manifest.json'}: damaged: {error!r}".splitlines()[0]) from error
        return store

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

    @overload
    def tokens(self, block: int) -> NDArray[Any]: ...
    @overload
    def tokens(self, block: int, i: int) -> NDArray[np.float32]: ...
    def tokens(self, block: int, i: int | None = None) -> NDArray[Any]:
        """Return the memory map of a block as stored, or image ``i``'s tokens as float32 (T, C), a copy.

        The map is (N, T, C), ragged (sum of T, C); bfloat16 appears as uint16 (:func:`as_float` decodes it).
        """
        self._has(block, "tokens")
        stored = self._map(tokens_name(block), self._token_shape())
        if i is None:
            return stored
        if self.offsets is None:
            return as_float(stored[i])
        i = range(len(self.ids))[i]
        return as_float(stored[self.offsets[i] : self.offsets[i + 1]])

    def cls(self, block: int) -> NDArray[np.float32] | None:
        """Return the class tokens of a block as float32 (N, C), None if they were not exported."""
        if not self.manifest["cls"]:
            return None
        self._has(block, "cls")
        return as_float(self._map(cls_name(block), (len(self.ids), self.dim)))

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

    def _map(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        if name not in self._maps:
            place = locate_array(self.file_format, self.path, name)
            if (place.dtype, place.shape) != (STORED[self.dtype], shape):
                raise DataError(
                    f"{place.path}: {name} is {place.dtype} {place.shape}, the manifest says {self.dtype} {shape}"
                )
            self._maps[name] = place.map()
        return self._maps[name]
