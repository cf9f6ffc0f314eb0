"""GPUs by name: their makers' rates, and what training steps and frozen passes reach of them.

An H100 was measured (``python -m benchmarks.gpu``, docs/measured.md): a compiled DINO step of ViT-S/16 at batch 64 in
bfloat16, and passes through all blocks at batch 128 in float32 and TF32. A step of width 384 is neither bound by
products alone nor by memory alone, so another card is assumed to reach the H100's rate times the geometric mean of both
ratios, of products and of memory. Wider networks reach more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dinoskip.runtime.arithmetic import Precision


@dataclass(frozen=True)
class Card:
    """A GPU: dense TFLOP/s by precision and TB/s of its memory, from its data sheet."""

    bf16: float
    tf32: float
    fp32: float
    memory: float

    def peak(self, precision: Precision) -> float:
        """Dense TFLOP/s of products in a precision."""
        return {"bf16": self.bf16, "tf32": self.tf32, "fp32": self.fp32}[precision]

    def reached(self, precision: Precision) -> float:
        """TFLOP/s that steps and passes of a ViT-S reach."""
        products, memory = self.peak(precision) / _H100.peak(precision), self.memory / _H100.memory
        return REACHED[precision] * math.sqrt(products * memory)


_H100 = Card(989.0, 494.5, 67.0, 3.35)
REACHED: Mapping[Precision, float] = MappingProxyType({"bf16": 135.5, "tf32": 87.3, "fp32": 33.9})
"""TFLOP/s on an H100, 2026-11-27: the step at 1,195 images/s of 113.4 GFLOP; passes of 9.2 GFLOP at 9,477 and 3,682."""
CARDS: Mapping[str, Card] = MappingProxyType(
    {
        "a100": Card(312.0, 156.0, 19.5, 2.039),
        "h100": _H100,
        "h200": Card(989.0, 494.5, 67.0, 4.8),
        "l40s": Card(362.0, 183.0, 91.6, 0.864),
        "4090": Card(165.2, 82.6, 82.6, 1.008),
    }
)
"""SXM cards of 80 and 141 GB, L40S, GeForce RTX 4090 (bfloat16 with float32 sums): their makers' data sheets."""


def named(name: str) -> str:
    """The key of :data:`CARDS` for a card by the name that torch gives it ("NVIDIA H100 80GB HBM3"), "" for none."""
    words = name.lower().replace("-", " ").split()
    return next((key for key in CARDS if any(word.startswith(key) for word in words)), "")
