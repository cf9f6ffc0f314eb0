"""A task in which a network can fail: to tell from which of 16 photographs a 32 × 32 grey crop is.

The photographs come with scikit-image. Crops for training are from the left three quarters of each, crops for testing
from the right quarter: chance is ln 16 = 2.773, and 6.25 %.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import skimage
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from dinoskip.io.images import read_image
from dinoskip.optim import OptimizerConfig, build_optimizer, set_rates
from dinoskip.runtime.randomness import torch_rng

PHOTOS = (
    "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "coffee.png", "coins.png", "grass.png",
    "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg",
    "rocket.jpg",
)  # fmt: skip
SIDE, SHORT = 32, 256


@cache
def photos() -> tuple[Tensor, ...]:
    """The photographs, grey, 256 pixels on the short side, of mean 0 and variance 1: (H, W) each."""
    crops = []
    for name in PHOTOS:
        pixels = torch.from_numpy(read_image(Path(skimage.__file__).parent / "data" / name)).double().mean(2)
        scale = SHORT / min(pixels.shape)
        size = [round(scale * side) for side in pixels.shape]
        grey = F.interpolate(pixels[None, None], size=size, mode="bicubic", antialias=True)[0, 0]
        crops.append(((grey - grey.mean()) / grey.std()).float())
    return tuple(crops)


def crops(count: int, *place: int | str, test: bool = False) -> tuple[Tensor, Tensor]:
    """``count`` random crops (count, 3, 32, 32), and of which photograph; the same for the same ``place``."""
    rng = torch_rng(0, "crops", *place)
    labels = torch.randint(len(PHOTOS), (count,), generator=rng)
    images = []
    for label, (u, v) in zip(labels.tolist(), torch.rand(count, 2, generator=rng).tolist(), strict=True):
        photo = photos()[label]
        border = photo.shape[1] * 3 // 4
        part = photo[:, border:] if test else photo[:, :border]
        top, left = int(u * (part.shape[0] - SIDE + 1)), int(v * (part.shape[1] - SIDE + 1))
        images.append(part[top : top + SIDE, left : left + SIDE])
    return torch.stack(images)[:, None].expand(-1, 3, -1, -1).contiguous(), labels


def train(
    model: VisionTransformer, config: OptimizerConfig, seed: int, steps: int = 400, batch: int = 32, decay: float = 0.05
) -> float:
    """Train to tell the photographs apart, 10 % warm-up and cosine; the mean loss of the last tenth of the steps."""
    optimizer = build_optimizer(model, config)
    losses = []
    for step in range(steps):
        warm = min(1.0, 10 * (step + 1) / steps)
        set_rates(optimizer, config.lr * warm * 0.5 * (1 + math.cos(math.pi * step / steps)), decay)
        images, labels = crops(batch, seed, step)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-(steps // 10) :]) / (steps // 10)


@torch.no_grad()
def accuracy(model: VisionTransformer, count: int = 1600) -> float:
    """Share of crops from the right quarters that are told apart."""
    model.eval()
    images, labels = crops(count, "test", test=True)
    return float((model(images).argmax(1) == labels).double().mean())
