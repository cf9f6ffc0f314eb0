"""The augmentation of :mod:`dinoskip.data.augment` in few kernels, for a device with a compiler.

It differs by the rounding of float32 alone (tests/data/test_fused_augment.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dinoskip.data.augment import (
    FLIP,
    GREY,
    JITTER,
    MEAN,
    SIGMA,
    SOLARISE,
    STD,
    augment,
    blend,
    blur_weights,
    jitter_rounds,
    luma,
    solarise,
    turned_hue,
)
from dinoskip.runtime.console import log


class FusedAugment:
    """A compiled :func:`dinoskip.data.augment.augment`; where compiling fails it warns and runs the plain one."""

    def __init__(self) -> None:
        self._compiled: Callable[[Tensor, Tensor], Tensor] | None = None  # at the first batch: workers get a copy
        self.works = True

    def __call__(self, crops: Tensor, vectors: Tensor) -> Tensor:
        """Augment uint8 crops (N, 3, S, S) where they lie; ``vectors`` float32 (N, PARAMETERS) are on the CPU."""
        if not self.works:
            return augment(crops, vectors)
        if self._compiled is None:
            self._compiled = torch.compile(fused_augment, dynamic=False, fullgraph=True)
        parameters = torch.from_numpy(fused_parameters(vectors.numpy())).to(crops.device, non_blocking=True)
        try:
            return self._compiled(crops, parameters)
        except torch.OutOfMemoryError:
            raise  # the plain one takes more memory
        # torch has its own exceptions for a compiler that is missing or fails, and a plain RuntimeError where it will
        # not compile at all (under a dispatch mode, on an untried platform). What is wrong with the images fails again.
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
            log.warning("the augmentation is not compiled and slower: %s", str(error).partition("\n")[0])
            self.works = False
            return augment(crops, vectors)


def fused_parameters(host: np.ndarray) -> np.ndarray:
    """Return what :func:`fused_augment` needs of N parameter vectors, float32 (N, columns).

    Columns: flip, grey, solarise; for each of the four rounds the three coefficients of the blend, whether the hue is
    turned instead, and by how much; mean and deviation of the channels; the blur's weights. Images that are not
    jittered have rounds that change nothing.
    """
    coefficients, hue, turns = jitter_rounds(host)
    still = host[:, JITTER] <= 0
    coefficients[:, :, still] = np.array([1, 0, 0], dtype=np.float32)[None, :, None]
    rounds = np.concatenate([coefficients, (hue & ~still)[:, None], turns[:, None]], axis=1)
    weights = blur_weights(host[:, SIGMA])
    wide = np.zeros((len(host), max(3, weights.shape[1])), dtype=np.float32)  # one width for all of DINO's sigmas
    wide[:, : weights.shape[1]] = weights
    switches = host[:, [FLIP, GREY, SOLARISE]] > 0
    moments = np.tile(np.array(MEAN + STD, dtype=np.float32), (len(host), 1))
    parts = (switches, rounds.reshape(20, -1).T, moments, wide)
    return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def fused_augment(crops: Tensor, parameters: Tensor) -> Tensor:
    """The augmentation with every operation done to every image, nothing decided by the host: for a compiler to fuse.

    Args:
        crops: uint8 (N, 3, S, S).
        parameters: of :func:`fused_parameters`, on the crops' device.
    """
    columns = [column.view(-1, 1, 1, 1) for column in parameters[:, :23].unbind(dim=1)]
    images = crops.to(torch.float32, memory_format=torch.contiguous_format) * (1 / 255)
    images = torch.where(columns[0] > 0, images.flip(3), images)
    channel = torch.arange(3, device=crops.device).view(3, 1, 1)
    sign, shift = torch.where(channel == 0, 1, -1), torch.where(channel == 0, -1, 2)
    centre = 3 - torch.where(channel == 0, 0, 3 - 2 * channel)  # 3, 2, 4
    for start in range(3, 23, 5):
        scale, level, mean, hue_here, turn = columns[start : start + 5]
        mixed = blend(images, scale, level, mean)
        low, chroma, hue = turned_hue(images, turn)
        pure = ((hue - centre).abs() * sign + shift).clamp(0, 1)
        images = torch.where(hue_here > 0, torch.addcmul(low, chroma, pure), mixed)
    images = torch.where(columns[1] > 0, luma(images), images)
    images = fused_blur(images, parameters[:, 29:])
    images = torch.where(columns[2] > 0, solarise(images), images)
    return (images - parameters[:, 23:26, None, None]) / parameters[:, 26:29, None, None]


def fused_blur(images: Tensor, weights: Tensor) -> Tensor:
    """The blur of :mod:`dinoskip.data.augment`, from padded copies: a compiler makes one kernel of each pass of it."""
    reach = weights.shape[1] - 1
    taps = weights.view(*weights.shape, 1, 1, 1).unbind(dim=1)
    for axis, border in ((3, (reach, reach, 0, 0)), (2, (0, 0, reach, reach))):
        length = images.shape[axis]
        for _ in range(3):
            padded = pad(images, border, mode="replicate")
            images = padded.narrow(axis, reach, length) * taps[0]
            for step in range(1, reach + 1):
                pair = padded.narrow(axis, reach - step, length) + padded.narrow(axis, reach + step, length)
                images = images + pair * taps[step]
    return images
