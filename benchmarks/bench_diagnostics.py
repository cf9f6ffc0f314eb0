"""Cost of looking inside a network while it trains: ``python -m benchmarks.bench_diagnostics``.

Claim: the live diagnostics cost less than 1 % of the training steps at every 100 steps; exit code 1 if they cost more.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from benchmarks.measuring import least_seconds
from dinoskip.diagnostics.live import LiveDiagnostics, gradient_rows
from dinoskip.models import create_model
from dinoskip.runtime.randomness import torch_rng


class Noise:
    """Two images for the live diagnostics."""

    def __len__(self) -> int:
        return 2

    def read(self, index: int) -> np.ndarray:
        """Return noise uint8 (256, 256, 3), a function of ``index`` alone."""
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

    of_step = least_seconds(step)  # which leaves the gradients that are looked at
    return least_seconds(look) / of_step / 100


def main() -> int:
    """Print the cost; 0 if the claim holds."""
    cost = live_cost()
    print(f"live diagnostics every 100 steps: {100 * cost:.2f} % of a step's forward and backward passes")
    return 0 if cost < 0.01 else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
