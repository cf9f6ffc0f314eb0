"""TokenCut's affinity graphs, kept as their 0/1 edge matrices, and the cut vector by the dense generalised solver.

A = weight * edges + floor everywhere. The binary graph of the paper has 0/1 edges, weight 1 - eps and floor eps; the
weighted one (the reference's ``--no-binary-graph``) has A itself as edges, weight 1 and floor 0. Tensors hold a batch
of B graphs of n tokens each, on any device; what differs between a GPU and a CPU is in three functions here:
:func:`similarities`, :func:`build_graphs` and :meth:`Graphs.apply`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.precision import exact_products
from dinoskip.randomness import numpy_rng
from eval.tokencut.symmetric import inner_products, symmetric_product

F64 = NDArray[np.float64]
T = TypeVar("T", np.float32, np.float64)
TINY_NORM = 1e-12  # of torch.nn.functional.normalize, which the reference calls
_SCRATCH = 2**22  # entries that a thread keeps at most: graphs of 2,048 tokens, 52 MiB
ALONE = 2.0**53  # the code of isolated tokens: no sum is as large


@dataclass(frozen=True, eq=False)
class Graphs:
    """B affinity graphs of n tokens: edges float64 (B, n, n) symmetric, degree float64 (B, n), all positive.

    ``isolated`` bool (B, n) marks the tokens of a binary graph that are joined to themselves alone. ``half``: only the
    lower triangles of ``edges`` are read, which halves what a product takes from memory.
    """

    edges: Tensor
    weight: float
    floor: float
    degree: Tensor
    isolated: Tensor
    binary: bool
    half: bool

    def apply(self, vectors: Tensor) -> Tensor:
        """Return A times ``vectors`` (B, n), all at once; for full edges."""
        start = (self.floor * vectors.sum(1, keepdim=True)).repeat(1, vectors.shape[1])
        return torch.baddbmm(start[:, :, None], self.edges, vectors[:, :, None], alpha=self.weight)[:, :, 0]

    def apply_one(self, edges: F64, vector: F64) -> F64:
        """Return A of the graph of these half edges (n, n) times ``vector`` (n,), on the CPU."""
        product = symmetric_product(edges, vector, self.weight)
        product += self.floor * vector.sum()
        return product

    @property
    def complete(self) -> list[bool]:
        """Which binary graphs join every token to every other: A is 1 everywhere. No two collapsed images differ."""
        n = self.degree.shape[1]
        return [self.binary and degree > n - self.weight / 2 for degree in self.degree.amin(1).tolist()]

    def take(self, which: Tensor) -> Graphs:
        """Return the graphs of the indices ``which``, copied."""
        parts = (self.edges[which], self.weight, self.floor, self.degree[which], self.isolated[which])
        return Graphs(*parts, self.binary, self.half)

    def probe(self) -> tuple[Tensor, Tensor]:
        """Return A times a fixed random vector, and a code of every token, both float64 (B, n); twins share a code.

        Twins are tokens that a cut cannot tell apart: those with the same row of 0/1 ``edges``, and all isolated
        tokens. The vector holds integers small enough for every sum to be exact, so equal products mean equal rows.
        The rows of a weighted graph carry rounding errors, so there each token is its own class.
        """
        count, n = self.degree.shape
        span = 2 ** (51 - n.bit_length())
        random = torch.from_numpy(numpy_rng(0, "tokencut", "probe", n).integers(-span, span, n).astype(np.float64))
        random = random.to(self.degree.device).repeat(count, 1)
        codes = _product(self.edges, random, self.half)
        image = self.weight * codes + self.floor * random.sum(1, keepdim=True)
        if not self.binary:
            return image, torch.arange(n, dtype=torch.float64, device=codes.device).repeat(count, 1)
        return image, codes.masked_fill_(self.isolated, ALONE)

    def dense(self, i: int) -> F64:
        """Return the affinity matrix A of graph ``i``, float64 (n, n), on the host."""
        array: F64 = self.edges[i].cpu().numpy()
        array = _mirrored(array) if self.half else array
        return np.where(array > 0, 1.0, self.floor) if self.binary else array


@dataclass(frozen=True, eq=False)
class CutVector:
    """Second generalised eigenvector y (n,) of (D - A, D), y'Dy = 1, sign open.

    ``error`` (n,) bounds the error of each entry (0 from the dense solver, the last resort); ``eigenvalue`` is the
    second smallest, ``gap`` its distance to the third; ``passes`` counts products with A, 0 for the dense solver.
    """

    y: F64
    error: F64
    eigenvalue: float
    gap: float
    passes: int


def normalise(features: Tensor) -> Tensor:
    """Return the rows of ``features`` (..., C), float32, divided by their :func:`lengths`; zero rows stay zero."""
    return (features / lengths(features).clamp_min(TINY_NORM)[..., None].to(features.dtype)).float()


def lengths(features: Tensor) -> Tensor:
    """Return the L2 norm of each row (..., C): float32, or float64 where a square goes beyond float32."""
    found: Tensor = torch.linalg.vector_norm(features, dim=-1)
    if not bool(torch.isfinite(found).all()):
        found = torch.linalg.vector_norm(features, dim=-1, dtype=torch.float64)
    return found


def similarities(unit: Tensor, *, half: bool = False, scratch: bool = False) -> Tensor:
    """Return the inner products (B, n, n) of normalised rows (B, n, C), float32 (TF32 changes 2 % of the cuts).

    On a CPU, ``half``: only the lower triangles are written, for :func:`build_graphs`; ``scratch``: in memory that the
    next such call of this thread overwrites.
    """
    if unit.is_cuda:
        with exact_products(unit.device):
            return unit @ unit.mT
    found = _room("similarity", (len(unit), unit.shape[1], unit.shape[1]), np.float32, scratch)
    for rows, out in zip(unit.contiguous().numpy(), found, strict=True):
        inner_products(rows, out)
        if not half:
            out[:] = _mirrored(out)
    return torch.from_numpy(found)


def build_graphs(
    similarity: Tensor,
    tau: float,
    eps: float,
    *,
    binary: bool = True,
    half: bool | None = None,
    scratch: bool = False,
) -> Graphs:
    """Connect tokens by cosine similarity, float32 (B, n, n), which is left as it is.

    Binary: affinity 1 where the similarity is strictly greater than float32 tau, else eps. Weighted: the similarity
    where it is at least tau, else eps. ``half`` is for products one by one on a CPU, and the default there;
    ``scratch`` as in :func:`similarities`. Raises
    ValueError if a degree is not positive (an eps of 0, or negative similarities kept by a negative tau), where the
    reference's solver fails too.
    """
    half = similarity.device.type == "cpu" if half is None else half
    count, n = similarity.shape[:2]
    level = float(np.float32(tau))
    if not binary:
        edges = similarity.masked_fill(similarity < level, eps).double()
    elif similarity.device.type == "cpu":  # NumPy casts truth values four times as fast
        similar = _room("similar", tuple(similarity.shape), np.bool_, scratch)
        array = _room("edges", tuple(similarity.shape), np.float64, scratch)
        np.copyto(array, np.greater(similarity.numpy(), np.float32(level), out=similar))
        edges = torch.from_numpy(array)
    else:
        edges = (similarity > level).double()
    ones = torch.ones(count, n, dtype=torch.float64, device=edges.device)
    total = _product(edges, ones, half)
    if binary:
        isolated = (total == 1) & (edges.diagonal(dim1=1, dim2=2) > 0)
        graphs = Graphs(edges, 1.0 - eps, eps, (1.0 - eps) * total + eps * n, isolated, True, half)
    else:
        graphs = Graphs(edges, 1.0, 0.0, total, torch.zeros_like(total, dtype=torch.bool), False, half)
    least, token = (part.tolist() for part in graphs.degree.min(1))
    for degree, where in zip(least, token, strict=True):
        if not degree > 0:
            raise ValueError(f"token {where} has degree {degree:g}; use a positive eps and a tau of at least 0")
    return graphs


def dense_vector(graphs: Graphs, i: int) -> CutVector:
    """Solve (D - A) y = lambda D y of graph ``i`` as the reference does: all n^3 of it, on the host.

    For few tokens and for undecided cuts.
    """
    affinity = graphs.dense(i)
    degrees = np.diag(graphs.degree[i].cpu().numpy())
    try:
        values, vectors = scipy.linalg.eigh(
            degrees - affinity, degrees, subset_by_index=[1, 2], overwrite_a=True, overwrite_b=True, check_finite=False
        )
    except np.linalg.LinAlgError as error:
        raise ValueError(f"the graph's eigenvectors could not be computed: {error}") from error
    y = vectors[:, 0]
    return CutVector(y, np.zeros_like(y), float(values[0]), float(values[1] - values[0]), 0)


@lru_cache(maxsize=256)
def complete_vector(n: int, eps: float) -> CutVector:
    """Return :func:`dense_vector` of the complete binary graph of ``n`` tokens, solved once: a collapsed network has
    it at every image. Every vector that sums to zero is an eigenvector, so the solver's is as good as another.
    """
    return dense_vector(build_graphs(torch.ones(1, n, n), 0.0, eps), 0)


def _mirrored(lower: NDArray[T]) -> NDArray[T]:
    """Return the symmetric matrix of this lower triangle; what is above it is not read."""
    return np.tril(lower) + np.tril(lower, -1).T


class _Kept(threading.local):
    """Memory of this thread by name: touching new pages for every graph takes as long as filling them."""

    def __init__(self) -> None:
        self.held: dict[str, NDArray[Any]] = {}


_kept = _Kept()


def _room(name: str, shape: tuple[int, ...], dtype: type[np.generic], scratch: bool) -> NDArray[Any]:
    """Return an array of whatever finite values; with ``scratch`` the thread's own of that name, if not too large."""
    size = int(np.prod(shape))
    if not scratch or size > _SCRATCH:
        return np.zeros(shape, dtype=dtype)
    if name not in _kept.held or _kept.held[name].size < size:
        _kept.held[name] = np.zeros(size, dtype=dtype)
    return _kept.held[name][:size].reshape(shape)


def _product(matrices: Tensor, vectors: Tensor, half: bool) -> Tensor:
    """Return (B, n) of symmetric float64 (B, n, n) times (B, n): batched, or one by one from lower triangles."""
    if not half:
        return torch.bmm(matrices, vectors[:, :, None])[:, :, 0]
    pairs = zip(matrices.numpy(), vectors.numpy(), strict=True)
    return torch.from_numpy(np.stack([symmetric_product(matrix, vector) for matrix, vector in pairs]))
