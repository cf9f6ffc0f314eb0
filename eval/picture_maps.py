"""Maps of patches that an evaluation leaves for the gallery: ``maps.json`` says in which files, of which images.

A file holds the maps of all images of a block, row after row, one image after the other: (N, h, w), or flat where
images have grids of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.features import FeatureSet
from dinoskip.io.arrays import map_array
from dinoskip.io.files import read_json, write_json

INDEX = "maps.json"
UNNAMED = 255  # the value of patches that stand for nothing


def write_map_index(
    out: Path, store: FeatureSet, files: Mapping[int, str], values: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Write ``maps.json`` into ``out`` for files by block.

    ``values`` says, by block, what the numbers in a file stand for (-1: nothing); without it they are what they are.
    """
    grids = [list(store.grid(i)) for i in range(len(store) if store.ragged else 1)]
    stored = {str(block): name for block, name in files.items()}
    write_json(out / INDEX, {"ids": list(store.ids), "grids": grids, "files": stored, "values": dict(values or {})})


def read_maps(folder: Path, ids: Sequence[str]) -> dict[int, dict[str, NDArray[np.uint8]]]:
    """Return ``{block: {id: (h, w) uint8}}`` of those of ``ids`` that are there; empty without ``maps.json``."""
    if not (folder / INDEX).is_file():
        return {}
    index: dict[str, Any] = read_json(folder / INDEX)
    grids = index["grids"] if len(index["grids"]) == len(index["ids"]) else index["grids"] * len(index["ids"])
    ends = np.cumsum([h * w for h, w in grids])
    place = {name: i for i, name in enumerate(index["ids"])}
    maps: dict[int, dict[str, NDArray[np.uint8]]] = {}
    for block, name in index["files"].items():
        stored = map_array(folder / name).reshape(-1)
        of_block = index["values"].get(block)
        named = None if of_block is None else np.where(np.array(of_block) < 0, UNNAMED, of_block).astype(np.uint8)
        maps[int(block)] = {}
        for image in filter(place.__contains__, ids):
            h, w = grids[place[image]]
            part = np.array(stored[ends[place[image]] - h * w : ends[place[image]]]).reshape(h, w)
            maps[int(block)][image] = part.astype(np.uint8) if named is None else named[part]
    return maps
