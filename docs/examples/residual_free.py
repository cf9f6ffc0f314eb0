"""GPT-2 without skips by KL-Shampoo, rounded: ``python docs/examples/residual_free.py``, with transformers.

The question of tables 1 to 4 of *The Quantization Benefits of Residual-Free Transformers*: what does a language model
lose without skip connections, and what when weights and activations are rounded? Here: four blocks of 64 channels on
420 kB of text, byte by byte; weights of 8 bits; orthogonal start with the paper's beta of 1.1 where skips are left out.
Three seeds of weights and batches, which all networks share.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from language_models import IMAGES, batch_of, gpt2
from small import bits, kurtosis, quantised, table, text_bytes, train, without_skips
from torch import nn

from dinoskip.init import residual_free_
from dinoskip.optim import KLShampoo

NETWORKS = {
    "skips, AdamW": (True, torch.optim.AdamW, 4e-3),
    "skips, KL-Shampoo": (True, KLShampoo, 1e-2),
    "no skips, AdamW": (False, torch.optim.AdamW, 3e-3),
    "no skips, KL-Shampoo": (False, KLShampoo, 1e-2),
}
"""Skips, optimizer, and its rate: the better of two on seed 9 with 150 steps; of AdamW with skips one was tried."""
ROUNDED = {"full": (32, 32), "W8A8": (8, 8), "W8A4": (8, 4), "W8A3": (8, 3), "W8A2": (8, 2)}


def measured(name: str, seed: int, steps: int) -> dict[str, float]:
    """Bits a byte on the held-out text, as trained and rounded, and the largest excess kurtosis of activations."""
    fitted, held = text_bytes()
    torch.manual_seed(seed)
    skips, kind, rate = NETWORKS[name]
    model: nn.Module = gpt2()
    if not skips:
        residual_free_(without_skips(model), beta=1.1, seed=seed)
    stream, scored = torch.Generator().manual_seed(100 + seed), torch.Generator().manual_seed(0)
    train(model, kind(model.parameters(), lr=rate), steps, lambda _: batch_of(fitted, IMAGES, "GPT-2", stream))
    val = [batch_of(held, 128, "GPT-2", scored) for _ in range(4)]
    calibration = [batch_of(fitted, 128, "GPT-2", scored) for _ in range(2)]
    rounded = {said: bits(quantised(model, *widths, calibration), val) for said, widths in ROUNDED.items()}
    return {**rounded, "kurtosis": kurtosis(model, val)}


def main(steps: int = 400, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Print a line of each network."""
    print(f"GPT-2, {steps} steps, bits a byte on held-out text (lower is better), largest excess kurtosis")
    rows = {}
    for name in NETWORKS:
        found = [measured(name, seed, steps) for seed in seeds]
        rows[name] = {column: [one[column] for one in found] for column in found[0]}
    print(table(rows, against="skips, AdamW"), flush=True)


if __name__ == "__main__":
    main()
