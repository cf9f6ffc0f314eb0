"""All randomness is a pure function of a seed and a position, so that nothing has to be saved to resume.

``derive(seed, "augment", epoch, index)`` always gives the same 63-bit integer, on any machine, in any
process, whatever was drawn before. The generators below start from such integers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch  # heavy; NumPy generators do without


def derive(seed: int, *path: int | str) -> int:
    """Return an integer in [0, 2**63) that depends on ``seed`` and ``path`` alone."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (int(seed), *path))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """Return a NumPy generator for this position."""
    return np.random.Generator(np.random.PCG64(derive(seed, *path)))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's step: 2^64 over the golden ratio, odd


def _mix(state: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, on uint64 that wraps around."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = state ^ (state >> np.uint64(31))
    return mixed


def uniforms(seed: int, *path: int | str, numbers: np.ndarray, count: int) -> np.ndarray:
    """Return uniform numbers in [0, 1), float64 (N, count), of which row i depends on seed, path and numbers[i] alone.

    For ``numbers`` (N,) of 0 or more. Each row is a SplitMix64 stream (Steele, Lea, Flood 2014) of its own start; many
    rows together cost what one generator object does.
    """
    starts = _mix((numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN + np.uint64(derive(seed, *path)))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    drawn: np.ndarray = (_mix(_mix(starts)[:, None] + steps) >> np.uint64(11)) * 2.0**-53
    return drawn


def torch_rng(seed: int, *path: int | str, device: str = "cpu") -> torch.Generator:
    """Return a torch generator for this position."""
    import torch  # heavy; NumPy generators do without

    return torch.Generator(device=device).manual_seed(derive(seed, *path))
