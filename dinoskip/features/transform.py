"""From an image file to the pixels a backbone sees: how it is sized, normalised and padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from dinoskip.config import Config
from dinoskip.data.crops import centre_crop, resize
from dinoskip.errors import ConfigError, DataError
from dinoskip.images import read_image


class Transform(Config):
    """How an image is brought to size.

    ``square``: resized to size × size, aspect ignored, so that every label pixel has a token. ``center_crop``:
    short side resized to size × 256 / 224, then the centre size × size (k-NN). ``native``: not resized; after
    normalisation zero-padded at the right and bottom to a multiple of the patch (TokenCut); ``size`` is unused.
    Resizing is bicubic with antialiasing.
    """

    mode: Literal["square", "center_crop", "native"] = "square"
    size: int = Field(default=224, ge=1)

    @property
    def label(self) -> str:
        """Short text for result rows: ``224 square``, ``native``."""
        return "native" if self.mode == "native" else f"{self.size} {self.mode}"

    def padded_size(self, height: int, width: int, patch: int) -> tuple[int, int]:
        """Return (height, width) of the backbone's input for an original image of this size.

        Raises :class:`ConfigError` if ``size`` is not a multiple of ``patch``.
        """
        if self.mode == "native":
            return math.ceil(height / patch) * patch, math.ceil(width / patch) * patch
        if self.size % patch:
            near = max(1, round(self.size / patch)) * patch
            raise ConfigError(f"transform.size: {self.size} is not a multiple of the patch size {patch}", f"try {near}")
        return self.size, self.size


def load_pixels(transform: Transform, path: Path, patch: int) -> torch.Tensor:
    """Decode and size one image to uint8 (3, H, W); native images keep their size.

    Raises :class:`DataError` naming the file if it cannot be read or, kept native, is smaller than a patch.
    """
    # HWC memory seen as CHW: torch's fast uint8 resampling wants channels last.
    image = torch.from_numpy(read_image(path)).permute(2, 0, 1)
    height, width = image.shape[1:]
    if transform.mode == "native":
        if min(height, width) < patch:
            raise DataError(f"{path}: {width}×{height} pixels is smaller than a patch of {patch}×{patch}")
        return image
    if transform.mode == "square":
        return resize(image, transform.size, transform.size)
    return centre_crop(image, transform.size)


class Normalise:
    """Batches of uint8 images to what a backbone takes: (x / 255 - mean) / std, then zero-padded to one size."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device, dtype: torch.dtype) -> None:
        self.mean, self.std = (  # torch.tensor(..., device=...) would wait for a GPU
            (255 * torch.tensor(values)).view(3, 1, 1).to(device, non_blocking=True) for values in (mean, std)
        )
        self.device, self.dtype = device, dtype

    def __call__(self, images: Sequence[torch.Tensor], height: int, width: int) -> torch.Tensor:
        """Return (B, 3, height, width) for uint8 images (3, H, W) on the CPU, none larger than that."""
        on_gpu = self.device.type == "cuda"
        # Bytes travel to the device, in one piece and without waiting for it; floats are made there.
        packed = torch.empty(len(images), 3, height, width, dtype=torch.uint8, pin_memory=on_gpu)
        for row, image in zip(packed, images, strict=True):
            row[:, : image.shape[1], : image.shape[2]] = image
        batch = packed.to(self.device, non_blocking=True).float().sub_(self.mean).div_(self.std)
        for row, image in zip(batch, images, strict=True):
            row[:, image.shape[1] :] = 0
            row[:, :, image.shape[2] :] = 0
        return batch.to(self.dtype)
