"""Training images of normal heads: the square in the middle, other colours, parts of it enlarged (probe3d).

Everything is drawn from one generator an image and visit. Nothing is turned or flipped: normals would turn with it.
"""

from __future__ import annotations

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F

from dinoskip_dense.geometry import LabelledNormals
from dinoskip_dense.normals.config import NormalsConfig
from eval.probe.targets import nearest

Example = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""An image uint8 (3, S, S), its normals float32 (3, S, S) and where they are known, bool (S, S)."""
_STRENGTH = 0.2  # of probe3d's ColorJitter, all four
_SMALLEST = 0.5  # share of the area


def square(item: LabelledNormals) -> Example:
    """The square in the middle of an image, as large as its short side."""
    height, width = item.valid.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    rows, columns = slice(top, top + side), slice(left, left + side)
    image, normals = (torch.from_numpy(np.ascontiguousarray(of[rows, columns])) for of in (item.image, item.normals))
    known = item.valid & (np.abs(item.normals).max(-1) > 0)
    return (
        image.permute(2, 0, 1),
        normals.permute(2, 0, 1),
        torch.from_numpy(np.ascontiguousarray(known[rows, columns])),
    )


def augmented(item: LabelledNormals, recipe: NormalsConfig, rng: np.random.Generator) -> Example:
    """Return :func:`square` of an image with other colours (torchvision's ColorJitter, 0.2 each) and enlarged."""
    image, normals, valid = square(item)
    if rng.random() < recipe.jitter:
        image = jittered(image, rng)
    if rng.random() < recipe.resized:
        whole = image.shape[1]
        side = max(1, round(whole * rng.uniform(_SMALLEST, 1.0) ** 0.5))
        top, left = (int(rng.integers(0, whole - side + 1)) for _ in range(2))
        rows, columns = (torch.from_numpy(start + nearest(side, whole)) for start in (top, left))
        image, normals, valid = (of[..., rows, :][..., columns] for of in (image, normals, valid))
    return image, normals, valid


def jittered(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Change brightness, contrast, saturation (each × 0.8-1.2) and hue (± 0.2 turns), in a random order."""
    factors, turn = rng.uniform(1 - _STRENGTH, 1 + _STRENGTH, 3), rng.uniform(-_STRENGTH, _STRENGTH)
    changes = (
        lambda x: F.adjust_brightness(x, float(factors[0])),
        lambda x: F.adjust_contrast(x, float(factors[1])),
        lambda x: F.adjust_saturation(x, float(factors[2])),
        lambda x: F.adjust_hue(x, float(turn)),
    )
    for number in rng.permutation(len(changes)):
        image = changes[number](image)
    return image
