"""Augmented crops of labelled images: image and label are cut, resized and flipped alike.

Everything is drawn from one generator an image and visit, so a crop is a function of (seed, image, visit) alone.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.data.augment import rotate_hue
from dinoskip.data.crops import TRIES, draw_boxes
from dinoskip.data.segmentation import IGNORE
from dinoskip.io.resize import resize
from eval.probe.config import ProbeConfig
from eval.probe.targets import nearest

LONGEST = 4  # the long side of a scaled image is at most so many times the short side that was asked for

Labelled = tuple[torch.Tensor, NDArray[np.uint8]]


def augmented(image: torch.Tensor, label: NDArray[np.uint8], recipe: ProbeConfig, rng: np.random.Generator) -> Labelled:
    """Return a crop uint8 (3, h, w) of image uint8 (3, H, W), h and w at most ``recipe.size``, and its label (S, S).

    Where a scaled image is smaller than the crop, the label is 255 below and to the right of it.
    """
    cut = _resized if recipe.crop == "resized" else _scaled
    image, label = cut(image, label, recipe, rng)
    if rng.random() < recipe.flip:
        image, label = image.flip(2), label[:, ::-1]
    if recipe.distort is not None:
        image = distorted(image, recipe.distort, rng)
    below, beside = (recipe.size - side for side in label.shape)
    return image, np.pad(label, ((0, below), (0, beside)), constant_values=IGNORE)


def _resized(image: torch.Tensor, label: NDArray[np.uint8], recipe: ProbeConfig, rng: np.random.Generator) -> Labelled:
    """A part of the image of random area and aspect (torchvision's RandomResizedCrop), made a square."""
    sides = np.array(image.shape[1:])
    boxes = draw_boxes(rng.random((1, TRIES, 4)), sides[:1], sides[1:], np.array([recipe.scale]))
    top, left, height, width = boxes[0].tolist()
    part = image[:, top : top + height, left : left + width]
    rows, columns = top + nearest(height, recipe.size), left + nearest(width, recipe.size)
    return resize(part, recipe.size, recipe.size), label[np.ix_(rows, columns)]


def scaled_size(height: int, width: int, short: float) -> tuple[int, int]:
    """Return (height, width) of an image whose short side is brought to ``short``, the long one to at most 4 × that."""
    factor = min(short / min(height, width), LONGEST * short / max(height, width))
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def _scaled(image: torch.Tensor, label: NDArray[np.uint8], recipe: ProbeConfig, rng: np.random.Generator) -> Labelled:
    """A square of the image at a random scale (mmsegmentation's Resize and RandomCrop).

    While one class fills more than ``cat_max_ratio`` of what is labelled in the square, another is drawn, ten times.
    """
    height, width = scaled_size(image.shape[1], image.shape[2], recipe.size * rng.uniform(*recipe.scale))
    rows, columns = nearest(image.shape[1], height), nearest(image.shape[2], width)
    for attempt in range(11):
        top, left = (int(rng.integers(0, max(side - recipe.size, 0) + 1)) for side in (height, width))
        down, across = slice(top, top + recipe.size), slice(left, left + recipe.size)
        part = label[np.ix_(rows[down], columns[across])]
        if attempt == 10 or _is_mixed(part, recipe.cat_max_ratio):
            break
    return resize(image, height, width)[:, down, across], part


def _is_mixed(label: NDArray[np.uint8], limit: float) -> bool:
    if limit == 1:
        return True
    counts = np.bincount(label.ravel(), minlength=IGNORE + 1)[:IGNORE]
    return bool((counts > 0).sum() > 1 and counts.max() < limit * counts.sum())


def distorted(image: torch.Tensor, hue: float, rng: np.random.Generator) -> torch.Tensor:
    """Return a uint8 image (3, H, W) with other colours (mmsegmentation's PhotoMetricDistortion).

    Each with probability 0.5: brightness ± 32 of 255, contrast × 0.5-1.5, saturation (HSV) × 0.5-1.5, hue ± ``hue``
    turns; contrast comes before the colours or after them.
    """
    x = image[None].float() / 255
    use, last = rng.random(4) < 0.5, rng.random() < 0.5
    shift, contrast = rng.uniform(-32, 32) / 255, rng.uniform(0.5, 1.5)
    saturation, turn = rng.uniform(0.5, 1.5), rng.uniform(-hue, hue)
    if use[0]:
        x = (x + shift).clamp_(0, 1)
    if use[1] and not last:
        x = (x * contrast).clamp_(0, 1)
    if use[2]:
        high, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        most = high / (high - low).clamp(min=1e-6)  # by which the saturation is 1
        # HSV's saturation, as mmsegmentation has it and so DINOv2. DINOv3's transform blends with grey; `dinov3` has
        # this one, too: one transform serves both protocols.
        x = high - (high - x) * most.clamp(max=saturation)
    if use[3]:
        x = rotate_hue(x, torch.tensor([turn], dtype=torch.float32))
    if use[1] and last:
        x = (x * contrast).clamp_(0, 1)
    return (x[0] * 255).round_().clamp_(0, 255).to(torch.uint8)
