"""Facts read off a network of timm, never from a table: sizes, parameters and operations.

The network is built without storage (torch's meta device) and run on shapes alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from dinoskip.errors import first_line
from dinoskip.models.backbone import Backbone
from dinoskip.models.timm_networks import built_for
from dinoskip.settings.vit_config import NetworkFacts


@lru_cache(maxsize=64)
def _without_storage(name: str, size: int) -> Any:
    with torch.device("meta"):
        return built_for(name, size, 0).requires_grad_(False)


@lru_cache(maxsize=64)
def facts_of(name: str, size: int) -> NetworkFacts:
    """Facts of timm's network ``name`` (without ``timm:``), built for images of ``size`` pixels a side."""
    model = _without_storage(name, size)
    backbone = Backbone.from_model(model, f"timm:{name}", image_size=size)
    return NetworkFacts(
        strides=tuple(backbone.stride(number) for number in backbone.numbers),
        widths=tuple(backbone.width("out", number) for number in backbone.numbers),
        multiple=backbone.size_multiple,
        features=int(model.num_features),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


@lru_cache(maxsize=64)
def refused_size(name: str, size: int, side: int) -> str | None:
    """Return why the network does not take images of ``side`` pixels, in its own words; None if it does."""
    try:
        _run(_without_storage(name, size), side)
    except (RuntimeError, AssertionError) as error:
        return first_line(error)
    return None


@lru_cache(maxsize=64)
def flops_of(name: str, size: int, side: int) -> int:
    """Operations of a forward pass of one image of ``side`` pixels, as torch counts them: products and convolutions.

    An addition and a multiplication are two, as in :mod:`dinoskip.settings.flops`.
    """
    with FlopCounterMode(display=False) as counter:
        _run(_without_storage(name, size), side)
    return int(counter.get_total_flops())


@torch.no_grad()
def _run(model: Any, side: int) -> torch.Tensor:
    model.eval()
    features: torch.Tensor = model(torch.zeros(1, 3, side, side, device="meta"))
    return features
