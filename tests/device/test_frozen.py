"""A frozen network's pass on each device: it waits for nothing, and its memory is bounded, in each precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dinoskip.runtime.precision import Precision
from tests.helpers.devices import DEVICES, peak_bytes, waits
from tests.helpers.tiny_vit import tiny_vit

BLOCKS, BATCH, SIDE = [1, 2], 8, 64
TOKENS = 4 * BATCH * 16 * 192  # bytes of a block's tokens in float32: 16 patches of width 192
PEAK = {"fp32": 21 * TOKENS, "bf16": 44 * TOKENS}  # of a pass that keeps both blocks: half as much again as on a CPU


def passing(there: torch.device, precision: Precision) -> Callable[[], object]:
    """A pass over images on the device, after one that fills caches."""
    backbone = tiny_vit(size=SIDE).to(there)
    backbone.precision = precision
    noise = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=noise).to(there)

    def layers() -> object:
        return backbone.layers(images, BLOCKS, ["out", "key"], "none")

    layers()
    return layers


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_pass_waits_for_nothing(device: str, precision: Precision) -> None:
    assert waits(device, lambda there: passing(there, precision)) == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("device", DEVICES)
def test_memory_of_a_pass_is_bounded(device: str, precision: Precision) -> None:
    peak = peak_bytes(device, passing(torch.device(device), precision))
    assert 4 * TOKENS < peak < PEAK[precision], peak / TOKENS
