"""Maps for the gallery, of equal and of own grids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from eval.picture_maps import UNNAMED, read_maps, write_map_index


class Store(SimpleNamespace):
    """The part of a feature store that the index reads."""

    def grid(self, i: int) -> tuple[int, int]:
        return self.grids[i if self.ragged else 0]

    def __len__(self) -> int:
        return len(self.ids)


def store(**more: Any) -> Any:
    return Store(**more)


def test_ragged_maps_come_back_by_image(tmp_path: Path) -> None:
    grids = [(2, 3), (1, 4), (3, 2)]
    maps = [np.arange(h * w).reshape(h, w) % 2 == 0 for h, w in grids]
    np.save(tmp_path / "m.npy", np.concatenate([one.ravel() for one in maps]))
    write_map_index(tmp_path, store(ids=("b", "a", "c"), grids=grids, ragged=True), {7: "m.npy"})
    found = read_maps(tmp_path, ["c", "b", "missing"])
    assert list(found) == [7]
    assert list(found[7]) == ["c", "b"]
    np.testing.assert_array_equal(found[7]["c"], maps[2])
    np.testing.assert_array_equal(found[7]["b"], maps[0])


def test_numbers_are_named_where_they_stand_for_something(tmp_path: Path) -> None:
    clusters = np.array([[[0, 1], [2, 2]], [[1, 1], [0, 2]]], dtype=np.uint16)
    np.save(tmp_path / "m.npy", clusters)
    write_map_index(tmp_path, store(ids=("x", "y"), grids=[(2, 2)], ragged=False), {1: "m.npy"}, {"1": [5, -1, 0]})
    found = read_maps(tmp_path, ["y"])
    assert found[1]["y"].tolist() == [[UNNAMED, UNNAMED], [5, 0]]
    assert read_maps(tmp_path / "elsewhere", ["y"]) == {}
