"""From an image file to the pixels a backbone sees: how it is sized, normalised and padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import torch
from PIL import Image
from pydantic import Field, model_validator

from dinoskip.errors import ConfigError, DataError
from dinoskip.io.images import read_image
from dinoskip.io.resize import centre_crop, resize, short_side_size
from dinoskip.settings.config import Config, dump

RESAMPLING = MappingProxyType(
    {
        "lanczos": Image.Resampling.LANCZOS,
        "bilinear": Image.Resampling.BILINEAR,
        "nearest": Image.Resampling.NEAREST,
    }
)
"""Pillow's filters, for what is not bicubic."""


class Transform(Config):
    """Resizing and cropping of an image to the input size.

    ``square``: resized to size × size, aspect ignored, so that every label pixel has a token. ``center_crop``:
    short side resized to size × 256 / 224, then the centre size × size (k-NN). ``native``: not resized; after
    normalisation zero-padded at the right and bottom to a multiple of the patch (TokenCut). ``rounded``: each side
    resized to the nearest multiple of the patch (TokenCut on saliency). ``short_crop``: short side resized to size,
    then the centre size × size (STEGO). ``size`` is unused by ``native`` and ``rounded``.

    Resizing is bicubic with antialiasing, unless ``resample`` names another filter, Pillow's. With ``flip`` features
    are the mean of the image's and of its mirror image's, mirrored back; images that are padded cannot be.
    """

    mode: Literal["square", "center_crop", "native", "rounded", "short_crop"] = "square"
    size: int = Field(default=224, ge=1)
    resample: Literal["bicubic", "bilinear", "lanczos", "nearest"] = "bicubic"
    flip: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.flip and self.mode == "native":
            raise ValueError("flip: native images are padded on one side")
        if self.resample != "bicubic" and self.mode in {"native", "center_crop"}:
            raise ValueError(f"resample: {self.mode} is {'not resized' if self.mode == 'native' else 'bicubic'}")
        return self

    @property
    def written(self) -> dict[str, Any]:
        """As the manifest of a store has it: without the filter and the flip, which are newer, where they are usual."""
        usual = {"resample": "bicubic", "flip": False}
        return {name: value for name, value in dump(self).items() if name not in usual or value != usual[name]}

    @property
    def ragged(self) -> bool:
        """Whether images keep their proportions, so that they have different numbers of tokens."""
        return self.mode in {"native", "rounded"}

    @property
    def label(self) -> str:
        """Short text for result rows: ``224 square``, ``native``, ``480 square, lanczos``."""
        text = self.mode if self.ragged else f"{self.size} {self.mode}"
        more = ([] if self.resample == "bicubic" else [self.resample]) + (["flip"] if self.flip else [])
        return ", ".join([text, *more])

    def padded_size(self, height: int, width: int, patch: int) -> tuple[int, int]:
        """Return (height, width) of the backbone's input for an original image of this size.

        Raises :class:`ConfigError` if ``size`` is not a multiple of ``patch``.
        """
        if self.mode == "rounded":  # at least a patch, where the reference would make nothing of a thin image
            return max(1, round(height / patch)) * patch, max(1, round(width / patch)) * patch
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
            raise DataError(
                f"{path}: {width}×{height} pixels is smaller than a patch of {patch}×{patch}",
                "remove it, or leave such images out with --skip-broken",
            )
        return image
    if transform.mode == "center_crop":
        return centre_crop(image, transform.size)
    if transform.mode == "short_crop":
        image = _resized(image, *short_side_size(height, width, transform.size), transform.resample)
        top, left = central_corner(image.shape[1], image.shape[2], transform.size)
        return image[:, top : top + transform.size, left : left + transform.size]
    return _resized(image, *transform.padded_size(height, width, patch), transform.resample)


def central_corner(height: int, width: int, size: int) -> tuple[int, int]:
    """Return (top, left) of the central crop size × size, as torchvision's CenterCrop rounds it."""
    return round((height - size) / 2), round((width - size) / 2)


def _resized(image: torch.Tensor, height: int, width: int, resample: str) -> torch.Tensor:
    """Resize uint8 (3, H, W), by Pillow where it is not bicubic."""
    if resample == "bicubic":
        return resize(image, height, width)
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    sized = np.array(picture.resize((width, height), RESAMPLING[resample]))
    return torch.from_numpy(sized).permute(2, 0, 1)


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
