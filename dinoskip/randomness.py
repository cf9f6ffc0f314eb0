"""All randomness is a pure function of a seed and a position, so that nothing has to be saved to resume.

``derive(seed, "augment", epoch, index)`` always gives the same 63-bit integer, on any machine, in any
process, whatever was drawn before. The generators below start from such integers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *path: int | str) -> int:
    """Return an integer in [0, 2**63) that depends on ``seed`` and ``path`` alone."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (int(seed), *path))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """Return a NumPy generator for this position."""
    return np.random.Generator(np.random.PCG64(derive(seed, *path)))


def torch_rng(seed: int, *path: int | str, device: str = "cpu") -> torch.Generator:
    """Return a torch generator for this position."""
    import torch

    return torch.Generator(device=device).manual_seed(derive(seed, *path))
