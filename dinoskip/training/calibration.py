"""The first weights of networks whose initialisation is measured on images: which images, and what they changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from dinoskip.diagnostics.propagation import PropagationRow, propagation
from dinoskip.errors import ConfigError, DataError
from dinoskip.init.build import build_model
from dinoskip.init.config import CalibratedInit, ModelConfig
from dinoskip.io.resize import centre_crop
from dinoskip.models.export import load_weights
from dinoskip.runtime.console import log
from dinoskip.runtime.distributed import on_main
from dinoskip.training.objective import Objective

_LOOKED_AT = 8  # images: two networks run on them before the training starts
Start = Callable[[], Mapping[str, Tensor]]
"""Gives a backbone's first weights by name."""


class Pictures(Protocol):
    """Images that are known by number, such as a folder of them."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> np.ndarray:
        """Image ``index`` as uint8 (H, W, 3); :class:`DataError` if it cannot be read."""


def spread(total: int, count: int, *, between: bool = False) -> list[int]:
    """Return at most ``count`` numbers below ``total``, evenly spread; ``between``: the middles of the gaps."""
    count = min(count, total)
    shift = total // (2 * count) if between else 0
    return [index * total // count + shift for index in range(count)]


def centre_crops(images: Pictures, rows: Sequence[int], size: int) -> Tensor:
    """The centre ``size`` × ``size`` of the images of these numbers, normalised: float32 (B, 3, size, size).

    As k-NN cuts them: the short side is resized to size / 0.875. Images that cannot be read are left out, with a
    warning; :class:`DataError` if none can be.
    """
    crops, faults = [], []
    for row in rows:
        try:
            crops.append(centre_crop(torch.from_numpy(images.read(row)).permute(2, 0, 1), size))
        except DataError as error:
            faults.append(error.message)
    if faults:
        log.warning("calibration: %d images left out, such as %s", len(faults), faults[0])
    if not crops:
        raise DataError(f"calibration: none of {len(rows)} images can be read, such as {faults[0]}")
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
    return (torch.stack(crops).float() / 255 - mean) / std


def calibrated_model(config: ModelConfig, seed: int, images: Pictures) -> VisionTransformer:
    """The network of a calibrated initialisation, measured on ``config.init.count`` of these images."""
    assert isinstance(config.init, CalibratedInit)
    rows = spread(len(images), config.init.count)
    return build_model(config, seed, images=centre_crops(images, rows, config.img_size))


def before_and_after(config: ModelConfig, seed: int, images: Pictures) -> dict[str, Any]:
    """Measure what subtracting means changes, by block: ``{"images": n, "before": rows, "after": rows}``, JSON-able.

    Rows are :class:`dinoskip.diagnostics.propagation.PropagationRow` of the network with no mean subtracted and with
    ``config.init.centring`` of it, on up to 8 images between those it was measured on. One image alone gives no rows.
    """
    assert isinstance(config.init, CalibratedInit)
    plain = config.model_copy(update={"init": config.init.model_copy(update={"centring": 0.0})})
    crops = centre_crops(images, spread(len(images), _LOOKED_AT, between=True), config.img_size)
    if len(crops) < 2:
        return {"images": len(crops), "before": [], "after": []}
    rows = {
        name: [_rounded(row) for row in propagation(calibrated_model(settings, seed, images).eval(), crops)]
        for name, settings in (("before", plain), ("after", config))
    }
    return {"images": len(crops), **rows}


def _rounded(row: PropagationRow) -> dict[str, float]:
    """Round to five digits, which do not depend on the number of threads."""
    return {name: float(f"{value:.5g}") for name, value in asdict(row).items()}


def first_weights(model: ModelConfig, seed: int, images: Pictures, file: Path | None) -> Start | None:
    """Return a function that gives a run's first weights, from ``file`` or the training ``images``; None if not needed.

    Raises :class:`ConfigError` where the initialisation names a data set of a study and there is no study.
    """
    if file is not None:
        return lambda: load_weights(file)[0]
    if not isinstance(model.init, CalibratedInit):
        return None
    if model.init.images is not None:
        raise ConfigError(
            f"model.init.images: {model.init.images!r} is a data set of a study, and there is none",
            "leave it out: the training images are measured",
        )
    return lambda: calibrated_model(model, seed, images).state_dict()


def begin_with(objective: Objective, start: Start) -> None:
    """Give all of an objective's backbones the weights of ``start``, which rank 0 computes and sends to the others."""
    weights = on_main(lambda: dict(start()))
    for network in objective.networks.values():
        network.get_submodule("backbone").load_state_dict(weights)
