"""Batches of photographs, files and augmentation vectors that tests of the data path share."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path

import numpy as np
import torch

from dinoskip.data import augment
from dinoskip.data.sprites import photo


def crops(count: int = 6, size: int = 48) -> torch.Tensor:
    image = torch.from_numpy(photo("coffee").copy())
    cuts = [image[40 * i : 40 * i + size, 60 * i : 60 * i + size].permute(2, 0, 1) for i in range(count)]
    return torch.stack(cuts)


def vectors(count: int, **columns: float) -> torch.Tensor:
    result = np.zeros((count, augment.PARAMETERS), dtype=np.float32)
    result[:, [augment.BRIGHTNESS, augment.CONTRAST, augment.SATURATION]] = 1
    for name, value in columns.items():
        result[:, getattr(augment, name)] = value
    return torch.from_numpy(result)


def psnr(one: np.ndarray, two: np.ndarray) -> float:
    return -10 * math.log10(np.mean((one.astype(float) - two.astype(float)) ** 2) / 255**2 + 1e-12)


def write_files(root: Path, names: list[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(unicodedata.normalize("NFC", name).encode())
    return root
