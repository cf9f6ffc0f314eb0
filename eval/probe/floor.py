"""Probes of pixels without a network: fitted once for all networks with patches of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.io.files import load_tensors, read_json, save_tensors, write_json
from dinoskip.results.rows import Selection
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.tasks import FloorInputs, TaskInputs
from eval.labelled import LabelledTokens, places
from eval.pixels import PIXEL_FEATURES, PixelSizes, pixel_tokens
from eval.probe.config import ProbeConfig
from eval.probe.fit import fit_stored, selection_of

_AREAS, _ABOUT = "areas.safetensors", "floor.json"
_ROLES = ("train", "val")


@dataclass(frozen=True)
class PixelProbe:
    """A probe of pixels: ``areas`` int32 (images, 3, K) of the validation images, and how its rate was chosen."""

    areas: NDArray[np.int32]
    selected: Selection


def fit(
    train: LabelledTokens, val: LabelledTokens, given: TaskInputs | FloorInputs, sizes: Sequence[PixelSizes]
) -> dict[str, PixelProbe]:
    """Probes by their name; ``sizes`` say how the images of both splits are sized.

    Fitted as those of blocks are, also at 3 and 10 times the highest learning rate: their channels are less alike.
    """
    config: ProbeConfig = given.settings
    tokens = [
        pixel_tokens(given.labels[role], of.places, of.transform, of.patch_size)
        for role, of in zip(_ROLES, sizes, strict=True)
    ]
    rates = sorted({*config.learning_rates, *(times * max(config.learning_rates) for times in (3, 10))})
    recipe = config.model_copy(update={"learning_rates": tuple(rates)})
    device = choose_device(given.device)
    by_name = {}
    for name in PIXEL_FEATURES:
        of_train, of_val = (
            replace(data, tokens={1: pixels[name]}) for data, pixels in zip((train, val), tokens, strict=True)
        )
        (result,) = fit_stored(of_train, of_val, [(("", 1),)], {"": None}, recipe, given.seed, device)
        by_name[name] = PixelProbe(result.areas, selection_of(result))
    return by_name


def make_floor(given: FloorInputs) -> None:
    """Fit the probes on all images of both splits, and write ``areas.safetensors`` and ``floor.json``."""
    sizes = [PixelSizes.of(given.labels[role], given.transforms[role], given.patch_size) for role in _ROLES]
    train, val = (
        replace(LabelledTokens.labels_of(given.labels[role]), grid=of.grid(0))
        for role, of in zip(_ROLES, sizes, strict=True)
    )
    probes = fit(train, val, given, sizes)
    save_tensors(given.out / _AREAS, {name: torch.from_numpy(probe.areas) for name, probe in probes.items()})
    ids = {role: list(given.labels[role].ids) for role in _ROLES}
    write_json(given.out / _ABOUT, {"ids": ids, "selected": {name: probe.selected for name, probe in probes.items()}})


def probes_of(train: LabelledTokens, val: LabelledTokens, given: TaskInputs) -> Mapping[str, PixelProbe]:
    """The probes of ``given.floor`` where they are of the images that the features are of, else fitted here."""
    stores = [given.features[role] for role in _ROLES]
    if given.floor is not None:
        about = read_json(given.floor / _ABOUT)
        if all(about["ids"][role] == list(store.ids) for role, store in zip(_ROLES, stores, strict=True)):
            return _read(given.floor, about["selected"])
    sizes = [
        PixelSizes.of(given.labels[role], store.transform, store.patch_size, places(store, given.labels[role]))
        for role, store in zip(_ROLES, stores, strict=True)
    ]
    return fit(train, val, given, sizes)


def _read(folder: Path, selected: Mapping[str, Selection]) -> dict[str, PixelProbe]:
    areas = load_tensors(folder / _AREAS)
    return {name: PixelProbe(areas[name].numpy(), selected[name]) for name in PIXEL_FEATURES}
