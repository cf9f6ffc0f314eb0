"""How exactly float32 matrix products are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Inside, float32 products are float32: neither TF32 nor bfloat16, whose 7 to 10 bits move results."""
    cuda = device.type == "cuda"
    backend = torch.backends.cuda.matmul if cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = backend.fp32_precision
    backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        backend.fp32_precision = before
