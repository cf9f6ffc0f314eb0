"""PCA of patch features to a few components, exact and streamed, and its colours (docs/gallery.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]
Tokens = ArrayLike | torch.Tensor | Iterable[Any]
CHUNK_ROWS = 2048  # tokens in float64 at a time
UNSKEWED = 1e-6  # skewness below which its sign is rounding noise


class PatchPCA:
    """Principal components of patch tokens, as a singular value decomposition of the centred tokens gives them.

    The covariance is summed in float64 chunk by chunk and its top eigenvectors taken, so memory is bounded by a chunk
    and C x C. Each component's sign makes the scores of the fitted tokens positively skewed (the few stand out bright
    against the many); where they are not skewed, the largest entry of the component is positive.

    Attributes, after :meth:`fit`
    -----------------------------
    mean_
        float64 (C,).
    components_
        float64 (n_components, C), orthonormal rows, largest variance first.
    explained_variance_, explained_variance_ratio_
        float64 (n_components,): variance (divisor n - 1) along each, and its part of the total.
    """

    def __init__(self, n_components: int = 3) -> None:
        if n_components < 1:
            raise ValueError(f"n_components must be at least 1, not {n_components}")
        self.n_components = n_components
        self.mean_: F64
        self.components_: F64
        self.explained_variance_: F64
        self.explained_variance_ratio_: F64

    def fit(self, tokens: Tokens) -> PatchPCA:
        """Fit to (..., C) tokens, all leading axes together, or to a list (or other re-iterable) of such chunks.

        NumPy or torch of any real dtype; memory maps are read chunk by chunk. The tokens are read twice, so a one-shot
        generator is refused. Raises ValueError for that, for fewer than 2 tokens or fewer channels than components, and
        for non-finite tokens.
        """
        count, shift, total, outer = 0, None, np.zeros(0), np.zeros((0, 0))
        for chunk in _chunks(tokens):
            if shift is None:  # near the mean: without it the covariance would be a difference of large numbers
                shift = chunk.mean(axis=0)
                total, outer = np.zeros(len(shift)), np.zeros((len(shift), len(shift)))
            chunk -= shift
            count += len(chunk)
            total += chunk.sum(axis=0)
            outer += chunk.T @ chunk  # BLAS sees one matrix twice and does half the work
        if shift is None or count < 2 or len(shift) < self.n_components:
            raise ValueError(f"{self.n_components} components need 2 tokens and as many channels")
        covariance = (outer - np.outer(total, total) / count) / (count - 1)
        if not np.isfinite(covariance).all():
            raise ValueError("tokens must be finite")
        channels = len(shift)
        values, vectors = scipy.linalg.eigh(covariance, subset_by_index=[channels - self.n_components, channels - 1])
        variance = max(float(np.trace(covariance)), np.finfo(np.float64).tiny)
        self.mean_ = shift + total / count
        self.explained_variance_ = np.clip(values[::-1], 0, None)
        self.explained_variance_ratio_ = self.explained_variance_ / variance
        self.components_ = np.ascontiguousarray(vectors.T[::-1])
        self.components_ *= self._signs(tokens, count)[:, None]
        return self

    def _signs(self, tokens: Tokens, count: int) -> F64:
        cubes, centre = np.zeros(self.n_components), self.components_ @ self.mean_
        for chunk in _chunks(tokens):
            scores = self.components_ @ chunk.T - centre[:, None]  # a few long rows: faster than long columns
            cubes += (scores * scores * scores).sum(axis=1)
        spread = count * self.explained_variance_**1.5
        skewness = np.divide(cubes, spread, out=np.zeros_like(cubes), where=spread > 0)
        largest = np.take_along_axis(self.components_, np.abs(self.components_).argmax(axis=1)[:, None], axis=1)[:, 0]
        return np.where(np.where(np.abs(skewness) > UNSKEWED, skewness, largest) < 0, -1.0, 1.0)

    def transform(self, tokens: ArrayLike | torch.Tensor) -> F64:
        """Return the scores, float64 (..., n_components), of tokens (..., C)."""
        array = tokens.detach().cpu() if isinstance(tokens, torch.Tensor) else np.asarray(tokens)
        if array.shape[-1] != len(self.mean_):
            raise ValueError(f"tokens have {array.shape[-1]} channels, the basis {len(self.mean_)}")
        scores = [(chunk - self.mean_) @ self.components_.T for chunk in _chunks(array)]
        joined = np.concatenate(scores) if scores else np.zeros(0)
        return joined.reshape(*array.shape[:-1], self.n_components)


# 2 and 98 %: by its least and largest value, a single outlying token would take a channel's whole range.
def channel_ends(scores: ArrayLike, quantiles: tuple[float, float] = (0.02, 0.98)) -> tuple[F64, F64]:
    """The low and high quantile, float64 (3,) each, of each channel of scores (n, 3): what :func:`to_rgb` scales by."""
    low, high = np.quantile(np.asarray(scores, dtype=np.float64), quantiles, axis=0)
    return low, high


def to_rgb(
    scores: ArrayLike,
    quantiles: tuple[float, float] = (0.02, 0.98),
    mask: NDArray[np.bool_] | None = None,
    *,
    between: tuple[F64, F64] | None = None,
) -> NDArray[np.uint8]:
    """Return uint8 (..., 3) colours of scores (..., 3): each channel from its low to its high quantile, clipped.

    Quantiles are taken over all leading axes: pass the images of a figure together for comparable colours, one by one
    for the strongest contrast. With ``mask`` bool (...), quantiles are those of the true tokens and the others are
    black. ``between`` are the ends of each channel in place of quantiles (:func:`channel_ends` of other scores).
    A channel without spread is mid-grey. Raises ValueError unless there are 3 finite channels.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.shape[-1:] != (3,) or not np.isfinite(values).all():
        raise ValueError(f"scores must be finite, of shape (..., 3), not {values.shape}")
    shown = values.reshape(-1, 3) if mask is None else values[mask]
    if not len(shown):
        return np.zeros(values.shape, dtype=np.uint8)
    low, high = between or channel_ends(shown, quantiles)
    flat = high <= low
    scaled = np.where(flat, 0.5, (values - low) / np.where(flat, 1.0, high - low))
    colours: NDArray[np.uint8] = np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)
    if mask is not None:
        colours[~mask] = 0
    return colours


def procrustes(source: ArrayLike, target: ArrayLike) -> F64:
    """Return the orthogonal (k, k) matrix R that minimises the Frobenius norm of source @ R - target, both (n, k).

    It turns a second model's scores onto the first's (Schoenemann 1966), so that their colours can be compared.
    """
    first, second = np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"scores of shapes {first.shape} and {second.shape} cannot be aligned")
    left, _, right = np.linalg.svd(first.T @ second)
    return np.asarray(left @ right, dtype=np.float64)


def _chunks(tokens: Tokens) -> Iterator[F64]:
    """Yield float64 (n, C) pieces of at most CHUNK_ROWS rows."""
    if isinstance(tokens, Iterator):
        raise ValueError("tokens are read twice: pass an array or a list of chunks, not a generator")
    if isinstance(tokens, torch.Tensor):
        tokens = tokens.detach().to("cpu", torch.float64 if tokens.dtype == torch.float64 else torch.float32).numpy()
    if isinstance(tokens, np.ndarray):
        rows = tokens.reshape(-1, tokens.shape[-1])
        for start in range(0, len(rows), CHUNK_ROWS):
            yield rows[start : start + CHUNK_ROWS].astype(np.float64)
        return
    for part in tokens:  # type: ignore[union-attr]
        yield from _chunks(part if isinstance(part, torch.Tensor) else np.atleast_2d(np.asarray(part)))
