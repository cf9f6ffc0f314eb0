"""Token features small enough for a page to compare any patch with all others: few components, eight bits.

The similarity of a patch to all others, of its image or of another, takes the Gram matrix of all images' unit tokens,
and the best approximation of that of a given rank is by its leading eigenvectors (Eckart and Young, 1936). So tokens
are normalised, turned onto those, cut, and rounded; products of what is left are cosines up to the error that
:class:`Reduced` states. Tokens that are nearly all alike need few components.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from visualize.colours import TokenSource

COMPONENTS = (8, 16, 24, 32, 48, 64)  # tried in this order
ERROR = 0.03  # of a cosine, with which the fewest components are taken
_PAIRS = 2**22  # cosines compared at once: 32 MiB, whatever the number of tokens


@dataclass(frozen=True)
class Reduced:
    """Features of images: the cosine of tokens i and j is nearly ``(codes * scales)[i] @ (codes * scales)[j]``.

    ``codes`` int8 (T, k) of each image, ``scales`` float32 (k,); ``error`` is the largest difference from the true
    cosine over all pairs of tokens of an image, and of an image and the next.
    """

    codes: Sequence[np.ndarray]
    scales: np.ndarray
    error: float


def reduce_tokens(images: Sequence[np.ndarray]) -> Reduced:
    """Reduce finite tokens (T, C) of each image to as few of ``COMPONENTS`` as keep ``ERROR``, or to the most."""
    units = [_unit(tokens) for tokens in images]
    channels = units[0].shape[1]
    most = min(COMPONENTS[-1], channels, sum(map(len, units)))
    gram = np.sum([unit.T @ unit for unit in units], axis=0)
    vectors = scipy.linalg.eigh(gram, subset_by_index=[channels - most, channels - 1])[1][:, ::-1]
    scores = [unit @ vectors for unit in units]
    scales = np.max([np.abs(score).max(axis=0) for score in scores], axis=0)
    scales = (np.maximum(scales, 1e-12) / 127).astype(np.float32)  # codes are int8; a constant component is 0
    codes = [np.rint(score / scales).clip(-127, 127).astype(np.int8) for score in scores]
    near = [code * scales for code in codes]
    errors = dict.fromkeys((min(count, most) for count in COMPONENTS), 0.0)
    for at in range(len(units)):
        for other in {at, min(at + 1, len(units) - 1)}:
            step = max(1, _PAIRS // len(units[other]))
            for row in range(0, len(units[at]), step):
                rows, begin = slice(row, row + step), 0
                left = units[at][rows] @ units[other].T
                for end in errors:
                    left -= near[at][rows, begin:end] @ near[other][:, begin:end].T
                    errors[end], begin = max(errors[end], float(np.abs(left).max())), end
    kept = next((count for count, error in errors.items() if error <= ERROR), most)
    return Reduced([code[:, :kept] for code in codes], scales[:kept], errors[kept])


def _unit(tokens: np.ndarray) -> np.ndarray:
    unit: np.ndarray = tokens.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    return unit


def page_features(store: TokenSource, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the features for gallery.js of the images ``names`` of one store, by image.

    Each block has one basis for all images. Images that the store lacks, tokens that are not finite, and images without
    any block are left out.
    """
    places = {name: list(store.ids).index(name) for name in names if name in store.ids}
    features: dict[str, dict[str, Any]] = {}
    for block in store.blocks:
        every = {name: np.asarray(store.tokens(block, at), np.float32) for name, at in places.items()}
        finite = {name: tokens for name, tokens in every.items() if np.isfinite(tokens).all()}
        if not finite:
            continue
        reduced = reduce_tokens(list(finite.values()))
        for name, codes in zip(finite, reduced.codes, strict=True):
            height, width = store.grid(places[name])
            entry = features.setdefault(name, {"size": [width, height], "blocks": {}})
            entry["blocks"][str(block)] = {
                "codes": base64.b64encode(codes.tobytes()).decode(),
                "scales": [float(f"{scale:.4g}") for scale in reduced.scales],
                "error": round(reduced.error, 3),
            }
    return features
