"""Cuts of pixels without a network: made once for all networks with patches of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.features import FeatureSet
from dinoskip.io.files import load_tensors, read_json, save_tensors, write_json
from dinoskip.settings.tasks import FloorInputs, TaskInputs
from eval.pixels import FilesOfSet, NamedFiles, PixelSizes
from eval.tokencut.config import TokenCutConfig
from eval.tokencut.store import cut_pixels

_CUTS, _ABOUT = "cuts.safetensors", "floor.json"


@dataclass(frozen=True)
class PixelCuts:
    """Cuts of all images by one kind of pixels: ``boxes`` int64 (N, 4) in cells, all 0 where the image is its box.

    ``flags`` bool (3, N): without a cut, with a complete graph, with an ambiguous seed.
    """

    boxes: NDArray[np.int64]
    flags: NDArray[np.bool_]


def cuts(dataset: NamedFiles, sizes: PixelSizes, config: TokenCutConfig, workers: int) -> dict[str, PixelCuts]:
    """Cut every image by its pixels, by the first tau."""
    found = {}
    for name, of_images in cut_pixels(dataset, sizes.places, sizes, config.tau[0], config.eps, workers).items():
        boxes = np.array([(0, 0, 0, 0) if cut is None else cut.box for cut in of_images], np.int64).reshape(-1, 4)
        flags = [(cut.degenerate, cut.complete, cut.ambiguous) if cut else (False,) * 3 for cut in of_images]
        found[name] = PixelCuts(boxes, np.array(flags, np.bool_).reshape(-1, 3).T.copy())
    return found


def make_floor(given: FloorInputs) -> None:
    """Cut all images, and write ``cuts.safetensors`` and ``floor.json``."""
    ((role, dataset),) = given.labels.items()
    sizes = PixelSizes.of(dataset, given.transforms[role], given.patch_size)
    tensors: dict[str, torch.Tensor] = {}
    for name, found in cuts(dataset, sizes, given.settings, given.workers).items():
        tensors |= {f"{name} boxes": torch.from_numpy(found.boxes), f"{name} flags": torch.from_numpy(found.flags)}
    save_tensors(given.out / _CUTS, tensors)
    write_json(
        given.out / _ABOUT, {"ids": list(dataset.ids), "names": sorted({key.rpartition(" ")[0] for key in tensors})}
    )


def cuts_of(
    given: TaskInputs, store: FeatureSet, dataset: FilesOfSet, places: Sequence[int]
) -> Mapping[str, PixelCuts]:
    """The cuts of ``given.floor`` where they are of the images that the features are of, else made here."""
    if given.floor is not None:
        about = read_json(given.floor / _ABOUT)
        if about["ids"] == list(store.ids):
            tensors = load_tensors(given.floor / _CUTS)
            return {
                name: PixelCuts(tensors[f"{name} boxes"].numpy(), tensors[f"{name} flags"].numpy())
                for name in about["names"]
            }
    return cuts(
        dataset, PixelSizes.of(dataset, store.transform, store.patch_size, places), given.settings, given.workers
    )
