"""How exactly float32 matrix products are computed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_inside: dict[str, tuple[int, Any]] = {}  # device type -> how many are inside, and the setting before the first


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Inside, float32 products are float32: neither TF32 nor bfloat16, whose 7 to 10 bits move results.

    The setting is one of the whole process, so threads may be inside together: the last that leaves puts it back.
    """
    cuda = device.type == "cuda"
    backend = torch.backends.cuda.matmul if cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _lock:
        count, before = _inside.get(device.type, (0, backend.fp32_precision))
        _inside[device.type] = count + 1, before
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _lock:
            count, before = _inside.pop(device.type)
            if count > 1:
                _inside[device.type] = count - 1, before
            else:
                backend.fp32_precision = before
