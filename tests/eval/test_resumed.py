"""Results image by image: settled part by part, begun again for other settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dinoskip.features import FeatureStore
from eval.resumed import ResumedArrays, degeneracy

MANIFEST = {
    "ids": list("abcd"), "blocks": [1], "dtype": "float32", "facet": "out", "norm": "none", "weights_hash": "w",
    "transform": {"mode": "square", "size": 16}, "patch_size": 8, "dim": 3, "depth": 1, "key": "k", "layout": "fixed",
    "grids": [[2, 2]], "image_sizes": [[16, 16]] * 4, "tokens": True, "cls": False,
}  # fmt: skip


class Pairs(FeatureStore):
    """Four images, two a part, those that are done left out."""

    def parts(self, done: np.ndarray | None = None) -> Iterator[FeatureStore]:
        for names in (["c", "a"], ["b", "d"]):
            left = [name for name in names if done is None or not done["abcd".index(name)]]
            if left:
                yield FeatureStore(self.path, MANIFEST | {"ids": left, "image_sizes": [[16, 16]] * len(left)})


def gone_through(out: Path, settings: list[str], stop: str = "") -> tuple[list[str], ResumedArrays, np.ndarray]:
    features = Pairs(out, MANIFEST)
    arrays, seen = ResumedArrays(features, settings, out), []
    values = arrays.kept("values", np.int64, (4,))
    if arrays.new:
        values[:] = -1
    arrays.begin()

    def work(part: FeatureStore) -> Iterator[tuple[int, str]]:
        for i, name in enumerate(part.ids):
            if name == stop:
                raise KeyboardInterrupt
            yield i, name

    try:
        for i, name in arrays.each("names", 1, work):
            seen.append(name)
            values[i] = ord(name)
    except KeyboardInterrupt:
        pass
    return seen, arrays, values


def test_a_stopped_run_goes_on_after_the_last_whole_part(tmp_path: Path) -> None:
    seen, arrays, _ = gone_through(tmp_path, ["x"], stop="d")
    assert seen == ["c", "a", "b"]
    assert arrays.done.tolist() == [True, False, True, False]
    seen, arrays, values = gone_through(tmp_path, ["x"])
    assert seen == ["b", "d"]
    assert not arrays.new
    arrays.finish()
    assert values.tolist() == [ord(name) for name in "abcd"]
    assert [path.name for path in tmp_path.iterdir()] == ["values.npy"]


def test_other_settings_begin_again(tmp_path: Path) -> None:
    gone_through(tmp_path, ["x"])
    seen, arrays, _ = gone_through(tmp_path, ["y"], stop="b")
    assert arrays.new
    assert seen == ["c", "a"]


def test_degeneracy() -> None:
    said = degeneracy(np.array([True, False]), np.array([True, True]), np.array([0.5, np.nan]))
    assert said == {"degenerate": 0.5, "complete": 1.0, "token_cosine": 0.5}
    assert degeneracy(np.zeros(1, bool), np.zeros(1, bool), np.array([np.nan]))["token_cosine"] is None
