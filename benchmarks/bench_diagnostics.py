"""Do skipless networks train, and what does looking inside cost? ``python -m benchmarks.bench_diagnostics``.

Claims: without skips the default initialisation stays at chance (ln 8 = 2.079), ours trains as well as the skip
network, for three seeds (8-way oriented gratings with noise, 12 blocks, width 96, 100 AdamW steps at 3e-4); and the
live diagnostics cost less than 1 % of a training step at every 100 steps. Minutes on two cores; exit code 1 if either
fails.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from dinoskip.diagnostics.live import LiveDiagnostics, gradient_rows
from dinoskip.init import skipless_, trunc_normal_
from dinoskip.models import create_model
from dinoskip.randomness import torch_rng

STEPS, BATCH, SIDE, CLASSES = 100, 32, 32, 8
NETWORKS = ("skip", "skipless default", "skipless initialised")


def gratings(step: int, seed: int) -> tuple[Tensor, Tensor]:
    """A batch of noisy gratings (B, 3, S, S) of random phase and wavelength, and their orientations (B,)."""
    rng = torch_rng(seed, "gratings", step)
    labels = torch.randint(CLASSES, (BATCH,), generator=rng)
    angle = labels * math.pi / CLASSES
    phase, wave = torch.rand(2, BATCH, generator=rng)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    along = x[None] * angle.cos()[:, None, None] + y[None] * angle.sin()[:, None, None]
    image = torch.sin(along * (0.5 + 0.5 * wave[:, None, None]) + 2 * math.pi * phase[:, None, None])
    noise = torch.randn(BATCH, SIDE, SIDE, generator=rng)
    return (image + 0.5 * noise)[:, None].expand(-1, 3, -1, -1).contiguous(), labels


def build(name: str, seed: int) -> VisionTransformer:
    """12 blocks of width 96, 3 heads."""
    model = create_model(
        "vit_tiny_patch8", skip=name == "skip", depth=12, img_size=SIDE, embed_dim=96, num_heads=3, num_classes=CLASSES
    )
    trunc_normal_(model, seed)
    if name == "skipless initialised":
        skipless_(model, seed=seed)
    return model


def final_loss(name: str, seed: int) -> float:
    """Mean loss of the last ten steps."""
    model = build(name, seed)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            warm = min(1.0, (step + 1) / 10)
            group["lr"] = 3e-4 * warm * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        images, labels = gratings(step, seed)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / 10


class Noise:
    """Two images for the live diagnostics."""

    def __len__(self) -> int:
        return 2

    def read(self, index: int) -> np.ndarray:
        """Pixels of the image."""
        return np.random.Generator(np.random.PCG64(index)).integers(0, 255, (256, 256, 3), dtype=np.uint8)


def live_cost() -> float:
    """Live diagnostics every 100 steps over a step's forward and backward passes: ViT-Ti, 16 crops of 96 pixels."""
    model = create_model("vit_tiny_patch16", img_size=96)
    images = torch.randn(16, 3, 96, 96, generator=torch_rng(0, "crops"))
    live = LiveDiagnostics(Noise(), 96)

    def step() -> None:
        model.zero_grad()
        model(images).square().mean().backward()

    def look() -> None:
        live.signals(model)
        gradient_rows(model, lambda p: p.grad)

    times = []
    for function in (step, look):
        function()
        began = [time.process_time()]
        for _ in range(5):
            function()
            began.append(time.process_time())
        times.append(min(np.diff(began)))
    return float(times[1] / times[0]) / 100


def main() -> int:
    """Print both; 0 if the claims hold."""
    good = True
    for seed in range(3):
        losses = {name: final_loss(name, seed) for name in NETWORKS}
        held = losses["skipless initialised"] < 1.2 and losses["skip"] < 1.2 and losses["skipless default"] > 1.7
        good &= held
        print(
            f"seed {seed}: "
            + ", ".join(f"{n} {v:.3f}" for n, v in losses.items())
            + f": {'holds' if held else 'FAILS'}"
        )
    cost = live_cost()
    print(f"live diagnostics every 100 steps: {100 * cost:.2f} % of a step's forward and backward passes")
    return 0 if good and cost < 0.01 else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
