"""Normals whose axes point elsewhere in some files, are exchanged, or were saved as colours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dinoskip.data.label_values import LabelValues, label_values
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.meaning import label_verdicts
from dinoskip_dense.labels import NORMALS
from dinoskip_dense.sets.rooms import RoomsConfig
from tests.helpers.signatures import stopping

CONFIG = RoomsConfig(images=12, size=96, val_fraction=0.5, seed=1)
Axes = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    root = CONFIG.generate(tmp_path_factory.mktemp("rooms"))
    return [open_labels(NORMALS, CONFIG, split, root) for split in ("train", "test")]


def changed(opened: Any, axes: Axes) -> Any:
    def load(image: Path, path: Path) -> Any:
        given = opened.load(image, path)
        turned = axes(given.normals)
        return replace(given, normals=turned / np.linalg.norm(turned, axis=-1, keepdims=True))

    return replace(opened, load=load)


@pytest.mark.parametrize("signs", [[1, 1, -1], [1, -1, 1], [-1, 1, 1], [-1, -1, -1]])
def test_splits_of_two_conventions_are_doubtful(splits: list[Any], signs: list[int]) -> None:
    train, test = splits
    other = changed(test, lambda normals: normals * np.float32(signs))
    assert stopping(label_verdicts("set", CONFIG, "normals", [train, other])) == [("doubtful", "normals-axes")]


@pytest.mark.parametrize("signs", [[1, 1, 1], [1, -1, -1], [-1, -1, -1]])
def test_one_convention_in_all_files_is_right_whichever_it_is(splits: list[Any], signs: list[int]) -> None:
    whole = [changed(part, lambda normals: normals * np.float32(signs)) for part in splits]
    assert stopping(label_verdicts("set", CONFIG, "normals", whole)) == []


@pytest.mark.parametrize(
    ("check", "axes"),
    [
        ("normals-unlike-depth", lambda normals: normals[..., [2, 0, 1]]),
        ("normals-encoded", lambda normals: (normals + 1) / 2),
    ],
)
def test_exchanged_axes_and_colours_are_doubtful(splits: list[Any], check: str, axes: Axes) -> None:
    found = stopping(label_verdicts("set", CONFIG, "normals", [changed(part, axes) for part in splits]))
    assert ("doubtful", check) in found


def test_kept_counts_are_read_as_they_were(splits: list[Any]) -> None:
    values = label_values("normals", splits[0]) + label_values("normals", splits[1])
    assert values.summed("files") == 12
    assert values.summed("z-", "test") == values.summed("x+", "test") == values.summed("y+", "test") == 6
    assert values.summed("z+") == 0
    assert LabelValues.of_plain(values.plain()) == values
