"""Token features small enough for a page to compare any patch with all others: few components, eight bits.

The similarity of a patch to all others takes the image's whole Gram matrix of unit tokens, and the best approximation
of that of a given rank is by its leading eigenvectors (Eckart and Young, 1936). So tokens are normalised, turned onto
those, cut, and rounded; products of what is left are cosines up to the error that :class:`Reduced` states. Tokens
that are nearly all alike need few components.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from visualize.colours import TokenSource

COMPONENTS = (8, 16, 24, 32, 48, 64)  # tried in this order
ERROR = 0.03  # of a cosine, with which the fewest components are taken


@dataclass(frozen=True)
class Reduced:
    """Features of one image: the cosine of tokens i and j is nearly ``(codes * scales)[i] @ (codes * scales)[j]``.

    ``codes`` int8 (T, k), ``scales`` float32 (k,); ``error`` is the largest difference from the true cosine over all
    pairs.
    """

    codes: np.ndarray
    scales: np.ndarray
    error: float


def reduce_tokens(tokens: np.ndarray) -> Reduced:
    """Reduce finite tokens (T, C) to as few of ``COMPONENTS`` as keep ``ERROR``, or to the most of them."""
    unit = tokens.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    most, channels = min(COMPONENTS[-1], *unit.shape), unit.shape[1]
    vectors = scipy.linalg.eigh(unit.T @ unit, subset_by_index=[channels - most, channels - 1])[1][:, ::-1]
    scores = unit @ vectors
    scales = (np.maximum(np.abs(scores).max(axis=0), 1e-12) / 127).astype(np.float32)
    codes = np.rint(scores / scales).clip(-127, 127).astype(np.int8)
    near = codes * scales
    left = (unit @ unit.T).astype(np.float32)
    kept, error = 0, 0.0
    for count in COMPONENTS:
        part = near[:, kept:count]
        left -= part @ part.T
        kept, error = min(count, most), float(np.abs(left).max())
        if error <= ERROR or kept == most:
            break
    return Reduced(codes[:, :kept], scales[:kept], error)


def page_features(store: TokenSource, name: str) -> dict[str, Any] | None:
    """What gallery.js needs of one image of one store, all blocks; None if the store lacks it.

    Blocks whose tokens are not finite are left out.
    """
    if name not in store.ids:
        return None
    index = list(store.ids).index(name)
    height, width = store.grid(index)
    blocks: dict[str, Mapping[str, Any]] = {}
    for block in store.blocks:
        tokens = np.asarray(store.tokens(block, index), np.float32)
        if not np.isfinite(tokens).all():
            continue
        reduced = reduce_tokens(tokens)
        blocks[str(block)] = {
            "codes": base64.b64encode(reduced.codes.tobytes()).decode(),
            "scales": [float(f"{scale:.4g}") for scale in reduced.scales],
            "error": round(reduced.error, 3),
        }
    return {"size": [width, height], "blocks": blocks} if blocks else None
