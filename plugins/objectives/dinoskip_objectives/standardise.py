"""Targets of one scale: a teacher's features standardised by channel, or by PHI-S.

PHI-S (Ranzinger et al. 2024, arXiv:2410.01680; NVlabs/RADIO ``phi_s.py`` @c0f3701) turns features, so that one number
divides all channels and every channel has variance 1: teachers of different spreads weigh the same, and no direction of
a teacher's own is stretched.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dinoskip.runtime.precision import at_least_float32
from dinoskip.runtime.randomness import torch_rng


class Standardisation(NamedTuple):
    """``(x - mean) @ weight.T`` for features (..., D); ``weight`` is (D, D), or (D,) for one factor a channel."""

    mean: Tensor
    weight: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Standardise, in at least float32."""
        centred = at_least_float32(features) - self.mean
        return centred * self.weight if self.weight.ndim == 1 else centred @ self.weight.T


@torch.no_grad()
def by_channel(features: Tensor) -> Standardisation:
    """Mean 0 and population variance 1 of every channel of a sample (n, D); a constant one is only centred."""
    spread, mean = torch.std_mean(features.double(), dim=0, unbiased=False)
    return Standardisation(mean.float(), torch.where(spread > 0, 1 / spread, 1.0).float())


@torch.no_grad()
def phi_s(features: Tensor) -> Standardisation:
    """PHI-S of a sample (n, D), n >= 2: W = H Uᵀ / φ, with U the covariance's eigenvectors, φ² its trace / D.

    The sample then has an unbiased variance of 1 in every channel, and x = φ² Wᵀ y + mean. Eigenvectors ascend, the
    largest component of each is positive. :func:`hadamard` says when the variances are equal only nearly.
    """
    values = features.double()
    mean = values.mean(0)
    eigenvalues, vectors = torch.linalg.eigh(torch.cov(values.T))
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    phi = eigenvalues.clamp_min(0).mean().sqrt()
    # Of a constant sample phi is 0.
    weight = hadamard(len(mean)).to(vectors) @ (vectors * largest.sign()).T / phi.clamp_min(1e-12)
    return Standardisation(mean.float(), weight.float())


def hadamard(size: int) -> Tensor:
    """An orthonormal Hadamard matrix, float64 (size, size); a random orthonormal one of a size that we have none for.

    Sizes are 2^k, by Sylvester's rule, and (q + 1) 2^k for a prime q = 3 mod 4, by Paley's: every width of timm's ViTs.
    """
    for odd in (1, *(q + 1 for q in _primes(size) if q % 4 == 3)):
        doublings = math.log2(size / odd)
        if doublings == int(doublings) and doublings >= 0:
            matrix = torch.ones(1, 1, dtype=torch.float64) if odd == 1 else _paley(odd - 1)
            for _ in range(int(doublings)):
                matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
            return matrix / math.sqrt(size)
    drawn = torch.randn(size, size, generator=torch_rng(0, "hadamard", size), dtype=torch.float64)
    orthonormal: Tensor = torch.linalg.qr(drawn).Q
    return orthonormal


def _paley(q: int) -> Tensor:
    """Paley's first construction, ±1 (q + 1, q + 1), of a prime q = 3 mod 4."""
    residues = {number * number % q for number in range(1, q)}
    character = torch.tensor([0.0 if d == 0 else 1.0 if d in residues else -1.0 for d in range(q)], dtype=torch.float64)
    rows = torch.stack([character.roll(shift) for shift in range(q)])  # χ(column - row)
    skew = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    skew[0, 1:], skew[1:, 0], skew[1:, 1:] = 1, -1, rows
    return skew + torch.eye(q + 1, dtype=torch.float64)


def _primes(limit: int) -> list[int]:
    return [n for n in range(3, limit) if all(n % d for d in range(2, math.isqrt(n) + 1))]
