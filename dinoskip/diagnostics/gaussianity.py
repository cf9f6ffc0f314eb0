"""Measures of the distance of values from Gaussian.

They are excess kurtosis from streaming moments, and negentropy of one-dimensional marginals: definitions 1 and 3 of
*The Quantization Benefits of Residual-Free Transformers*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dinoskip.runtime.randomness import torch_rng

MOST_VALUES = 100_000  # of which an entropy is taken


@dataclass(frozen=True)
class Moments:
    """Count, mean and central sums of powers 2 to 4, float64; one set a channel, or one in all (shape ()).

    ``of`` takes one batch, ``+`` merges two sets exactly (Pebay 2008), so batches, blocks and ranks can be added up in
    any order: ``sum(parts, start)``.
    """

    count: int
    mean: Tensor
    m2: Tensor
    m3: Tensor
    m4: Tensor

    @classmethod
    def of(cls, x: Tensor, *, per_channel: bool = False) -> Moments:
        """Moments of all values of ``x``, or of each of its last axis's channels. ``x`` must not be empty."""
        values = x.detach().double()
        values = values.reshape(-1, values.shape[-1]) if per_channel else values.reshape(-1)
        mean = values.mean(0)
        centred = values - mean
        squares = centred.square()
        return cls(len(values), mean, squares.sum(0), (squares * centred).sum(0), squares.square().sum(0))

    def __add__(self, other: Moments) -> Moments:
        a, b = self.count, other.count
        n, delta = a + b, other.mean - self.mean
        m2 = self.m2 + other.m2 + delta**2 * (a * b / n)
        m3 = self.m3 + other.m3 + delta**3 * (a * b * (a - b) / n**2) + 3 * delta * (a * other.m2 - b * self.m2) / n
        m4 = self.m4 + other.m4 + delta**4 * (a * b * (a * a - a * b + b * b) / n**3)
        m4 = m4 + 6 * delta**2 * (a * a * other.m2 + b * b * self.m2) / n**2
        m4 = m4 + 4 * delta * (a * other.m3 - b * self.m3) / n
        return Moments(n, self.mean + delta * (b / n), m2, m3, m4)

    @property
    def variance(self) -> Tensor:
        """Variance of all values, their count in the denominator."""
        return self.m2 / self.count

    @property
    def excess_kurtosis(self) -> Tensor:
        """E(x - μ)⁴ / (E(x - μ)²)² - 3: 0 for a Gaussian, NaN for a constant."""
        return self.count * self.m4 / self.m2.square() - 3.0  # of a Gaussian

    @property
    def skewness(self) -> Tensor:
        """E(x - μ)³ / σ³."""
        return self.m3 / self.count / self.variance**1.5


def excess_kurtosis(x: Tensor) -> float:
    """Excess kurtosis of all values of ``x``."""
    return float(Moments.of(x).excess_kurtosis)


@torch.no_grad()
def subsample(x: Tensor) -> Tensor:
    """Return at most 100,000 values of ``x``, drawn with replacement where there are more; float64 (n,)."""
    values = x.detach().reshape(-1)
    if len(values) > MOST_VALUES:
        values = values[torch.randint(len(values), (MOST_VALUES,), generator=torch_rng(0, "subsample")).to(x.device)]
    return values.double()


@torch.no_grad()
def negentropy(x: Tensor) -> float:
    """J(x) = H(Gaussian of the same variance) - H(x) in nats, of all values as one distribution; 0 only for a Gaussian.

    Entropy by Vasicek's m-spacings with m = √n on up to 100,000 values; ties count as gaps of 1e-9 σ. NaN for a
    constant.
    """
    return float(negentropy_on_device(x))


@torch.no_grad()
def negentropy_on_device(x: Tensor) -> Tensor:
    """:func:`negentropy` as a scalar where ``x`` lies; nothing is waited for."""
    values = subsample(x).sort().values
    deviation = values.std(correction=0)
    values = (values - values.mean()) / deviation.clamp_min(torch.finfo(torch.float64).tiny)
    count = len(values)
    m = max(1, round(math.sqrt(count)))
    padded = torch.cat([values[:1].expand(m), values, values[-1:].expand(m)])
    gaps = (padded[2 * m :] - padded[: -2 * m]).clamp_min(1e-9)
    # at the edges fewer than 2m values lie between the two ends
    index = torch.arange(count, device=values.device)
    between = torch.minimum(index + m, torch.tensor(count - 1)) - torch.maximum(index - m, torch.tensor(0))
    entropy = (gaps * (count / between)).log().mean()
    return torch.where(deviation > 0, 0.5 * math.log(2 * math.pi * math.e) - entropy, math.nan)


@dataclass(frozen=True)
class Histogram:
    """Density of standardised values over bins of equal width from -8 to 8 σ; what lies outside is in the end bins."""

    density: tuple[float, ...]
    excess_kurtosis: float


@torch.no_grad()
def histogram(x: Tensor, bins: int = 96) -> Histogram:
    """Histogram of all values, with their excess kurtosis (paper 4, Fig. 4)."""
    return Histogram(densities_of(standardised(x), bins), excess_kurtosis(x))


@torch.no_grad()
def standardised(x: Tensor) -> Tensor:
    """All values of ``x`` less their mean, over their deviation, in -8..8; float64 (n,) where ``x`` lies."""
    values = x.detach().double().reshape(-1)
    # Values beyond 8 deviations count in the end bins, so that the bins of all networks are the same.
    return ((values - values.mean()) / values.std(correction=0).clamp_min(1e-300)).clamp(-8, 8)


def densities_of(standard: Tensor, bins: int = 96) -> tuple[float, ...]:
    """Density of :func:`standardised` values over bins of equal width from -8 to 8."""
    counts, _ = np.histogram(standard.cpu().numpy(), bins=bins, range=(-8, 8), density=True)
    return tuple(counts.tolist())
