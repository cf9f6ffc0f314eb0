"""Dense structure estimation (arXiv:2510.17299): how far clusters of patches are apart, how tight, their rank.

EldercatSAM/SSL-Degradation ``estimator.py`` @b75fd51, which differs from the paper's equations, and these as other
texts quote them. Compare numbers within one setting alone. Clusters are of the project's own deterministic k-means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.runtime.randomness import torch_rng

GROUP = 8  # images whose patches are clustered together
ITERATIONS = 20  # at most: it ends when no label changes
EPS = 1e-12  # in the logarithm, for singular values that are 0


class Clusters(NamedTuple):
    """``of_images`` (B, N): clusters of each image's tokens; ``of_groups`` (B, N): of each group of images' tokens."""

    of_images: Tensor
    of_groups: Tensor


@dataclass(frozen=True)
class DseParts:
    """Parts of DSE. ``inter``, both ``intra`` and ``dim`` are as the released code has them, in units of ``spread``.

    ``spread`` is the mean distance of all tokens to their mean. ``paper_*`` are the paper's, means over groups.
    """

    spread: float
    inter: float
    intra_image: float
    intra_batch: float
    dim: float
    paper_inter: float
    paper_intra: float
    paper_dim: float

    @property
    def dse(self) -> float:
        """The number that the released code prints, λ = 1."""
        return self.inter + self.dim - (self.intra_batch + self.intra_image) / 2


@torch.no_grad()
def dse(features: Tensor, clusters: Clusters, order: Tensor, group: int = GROUP, *, normalise: bool = True) -> DseParts:
    """Parts for patches (B, N, d), their clusters, and a permutation ``order`` (B, N) of each image's tokens.

    Shared clusters are of ``group`` consecutive images each. With ``normalise`` tokens have unit length. In float64.
    """
    x = features.double()
    x = F.normalize(x, dim=-1) if normalise else x
    batch, count, width = x.shape
    every = x.flatten(0, 1)
    spread = float((every - every.mean(0)).norm(dim=-1).mean())
    groups = list(zip(x.split(group), clusters.of_groups.split(group), strict=True))  # type: ignore[no-untyped-call]
    apart = [_apart(tokens.flatten(0, 1), labels.flatten()) for tokens, labels in groups]
    radii = [_radii(tokens.flatten(0, 1), labels.flatten()) for tokens, labels in groups]
    image_radii = [_radii(tokens, labels) for tokens, labels in zip(x, clusters.of_images, strict=True)]
    images = torch.arange(batch)
    dims = [effective_rank_of(x[images, order[:, place]]) for place in range(count)]
    least = min(batch, width)
    return DseParts(
        spread=spread,
        inter=_mean([float(group_apart.nearest.mean()) for group_apart in apart]) / spread,
        intra_image=_mean([_mean([cluster.code for cluster in image]) for image in image_radii if image]) / spread,
        intra_batch=_mean([cluster.code for part in radii for cluster in part]) / spread,
        dim=_mean(dims) / least,
        paper_inter=_mean([_by_cluster(group_apart.nearest.square(), group_apart.labels) for group_apart in apart]),
        paper_intra=_mean([_mean([cluster.paper for cluster in part]) for part in radii]),
        paper_dim=_mean(dims),
    )


class _Apart(NamedTuple):
    nearest: Tensor  # distance of every token to the nearest centre of another cluster
    labels: Tensor


def _apart(tokens: Tensor, labels: Tensor) -> _Apart:
    names = _names(labels)
    centres = torch.stack([tokens[labels == name].mean(0) for name in names])
    distances = torch.cdist(tokens, centres, compute_mode="donot_use_mm_for_euclid_dist")
    distances[labels[:, None] == names] = torch.inf
    return _Apart(distances.amin(1), labels)


def _names(labels: Tensor) -> Tensor:
    return torch.tensor(sorted(set(labels.tolist())), device=labels.device)


class _Radius(NamedTuple):
    code: float
    paper: float


def _radii(tokens: Tensor, labels: Tensor) -> list[_Radius]:
    """Return the radius (sum of singular values, by either divisor) of every cluster of more than one token."""
    radii = []
    for name in _names(labels):
        members = tokens[labels == name]
        if len(members) > 1:
            total = float(torch.linalg.svdvals(members - members.mean(0)).sum())
            radii.append(_Radius(total / max(len(members) - 1, members.shape[1]) ** 0.5, total / (len(members) - 1)))
    return radii


def _by_cluster(values: Tensor, labels: Tensor) -> float:
    return _mean([float(values[labels == name].mean()) for name in _names(labels)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def effective_rank_of(rows: Tensor) -> float:
    """exp of the entropy of the shares of the singular values of rows (n, d), which are not centred."""
    values = torch.linalg.svdvals(rows.double())
    share = values / values.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return float((-(share * (share + EPS).log()).sum()).exp())


def random_order(images: int, tokens: int) -> Tensor:
    """A permutation of each image's tokens, int64 (images, tokens), the same for every network."""
    return torch.stack([torch.randperm(tokens, generator=torch_rng(0, "dse", image)) for image in range(images)])


@torch.no_grad()
def clusters_of(features: Tensor, per_image: int, per_group: int) -> Clusters:
    """k-means of patches (B, N, d): ``per_image`` clusters in each image, ``per_group`` in each group of images."""
    x = F.normalize(features.double(), dim=-1)
    grouped = [k_means(part.flatten(0, 1), per_group).view(len(part), -1) for part in torch.split(x, GROUP)]
    return Clusters(torch.stack([k_means(image, per_image) for image in x]), torch.cat(grouped))


@torch.no_grad()
def k_means(points: Tensor, clusters: int) -> Tensor:
    """Labels int64 (n,) of points (n, d) after 20 iterations; deterministic.

    The first centre is the point farthest from the mean, each further one the farthest from those chosen; a cluster
    that loses all its points keeps its centre.
    """
    centres = points[(points - points.mean(0)).norm(dim=-1).argmax()][None]
    for _ in range(min(clusters, len(points)) - 1):
        centres = torch.cat([centres, points[torch.cdist(points, centres).amin(1).argmax()][None]])
    labels = torch.cdist(points, centres).argmin(1)
    for _ in range(ITERATIONS):
        sums = torch.zeros_like(centres).index_add_(0, labels, points)
        counts = torch.bincount(labels, minlength=len(centres))[:, None]
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
        assigned = torch.cdist(points, centres).argmin(1)
        if bool((assigned == labels).all()):
            break
        labels = assigned
    return labels
