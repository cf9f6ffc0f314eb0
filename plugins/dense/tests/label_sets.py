"""Small valid sets of NYU's kinds, to be spoilt in one place; and all that an evaluation reads of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.data.sets import AnyDataset, open_labels
from dinoskip_dense.labels import DEPTH, NORMALS
from dinoskip_dense.sets.nyu import NyuConfig, NyuNormalsConfig
from tests.helpers.label_sets import HEIGHT, WIDTH, picture


def nyu(root: Path) -> AnyDataset:
    picture(root / "in" / "a.png")
    picture(root.parent / "outside.png")
    for path in (root / "in" / "d.png", root.parent / "outside_depth.png"):
        Image.fromarray(np.full((HEIGHT, WIDTH), 2000, np.uint16)).save(path)
    for split in ("train", "test"):
        (root / f"nyu_{split}.txt").write_text("in/a.png in/d.png 518\n")
    return NyuConfig(root=str(root))


def nyu_list(line: str) -> Callable[[Path], object]:
    return lambda root: (root / "nyu_test.txt").write_text(line)


def normals(root: Path) -> AnyDataset:
    save_normals()(root)
    return NyuNormalsConfig(root=str(root))


def save_normals(**arrays: Any) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        (root / "test").mkdir(parents=True, exist_ok=True)
        plain = {
            "image": np.zeros((HEIGHT, WIDTH, 3), np.uint8),
            "depth": np.full((HEIGHT, WIDTH), 2.0),
            "normals": np.dstack([np.zeros((HEIGHT, WIDTH, 2)), -np.ones((HEIGHT, WIDTH))]),
        }
        np.savez(root / "test" / "a.npz", **(plain | arrays))

    return apply


def spoilt(shape: tuple[int, ...], value: float) -> np.ndarray:
    values = np.ones(shape)
    values[0, 0] = value
    return values


def read_everything(config: AnyDataset) -> list[Any]:
    """Open and read a test split as an evaluation does; all that a score is made of, as plain lists."""
    if isinstance(config, NyuConfig):
        depth = open_labels(DEPTH, config, "test")
        return [depth.depth(index).tolist() for index in range(len(depth))]
    opened = open_labels(NORMALS, config, "test")
    read = [opened.read(index) for index in range(len(opened))]
    return [(one.image.tolist(), one.normals[one.valid].tolist(), one.valid.tolist()) for one in read]
