"""Linear CKA between representations (Kornblith et al. 2019): exact for two matrices, streaming for many layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dinoskip.models import Backbone
from dinoskip.runtime.randomness import torch_rng

TOKENS = 256  # of an image that CKA is taken of, at most
_ROUNDING = 1000  # times the dtype's epsilon: what a forward pass may leave of a difference that is none


@torch.no_grad()
def linear_cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA of (N, C) and (N, D) features of the same N samples, in feature space, columns centred here.

    ‖Yᵀ X‖_F² / (‖Xᵀ X‖_F ‖Yᵀ Y‖_F), between 0 and 1; invariant to rotations and to scale, not to every linear map.
    nan if one of them is the same for all samples, to rounding.
    """
    if len(x) != len(y):
        raise ValueError(f"linear_cka: {len(x)} and {len(y)} samples")
    x, y = _centred(x), _centred(y)
    norms = torch.linalg.matrix_norm(x.T @ x) * torch.linalg.matrix_norm(y.T @ y)
    return float(torch.linalg.matrix_norm(y.T @ x).square() / norms)


def _centred(x: Tensor) -> Tensor:
    """(n, C) in float64 without its mean over samples; nan where what is left is rounding of equal samples."""
    samples = x.double()
    centred: Tensor = samples - samples.mean(0)
    noise = _ROUNDING * torch.finfo(x.dtype).eps * torch.linalg.matrix_norm(samples)
    return torch.where(torch.linalg.matrix_norm(centred) > noise, centred, torch.nan)


class StreamingCKA:
    """CKA between all layers of one list and all of another, batch by batch, by the unbiased HSIC (Song et al. 2012).

    A batch's Gram matrices are n × n, n its samples; only sums over batches are kept (Nguyen et al. 2021, minibatch
    CKA). Being unbiased, values of unrelated layers scatter around 0 and can fall below it; with a layer that is the
    same for all samples of a batch, to rounding, CKA is nan: a collapsed network is similar to nothing.
    """

    def __init__(self) -> None:
        self._sums: list[Tensor] = []  # of HSIC between both lists, and within each

    @torch.no_grad()
    def update(self, left: Sequence[Tensor], right: Sequence[Tensor] | None = None) -> None:
        """Add a batch: features (n, C) of every layer, n of at least 4 and the same in all; ``right`` defaults to left.

        Every call must bring the same number of layers.
        """
        first = _hsic_grams(left)
        second = first if right is None else _hsic_grams(right)
        if first.shape[1:] != second.shape[1:]:
            raise ValueError(f"StreamingCKA: {first.shape[1]} and {second.shape[1]} samples")
        within = [torch.stack([_unbiased(g[None], g[None])[0, 0] for g in grams]) for grams in (first, second)]
        batch = [_unbiased(first, second), *within]
        self._sums = [before + now for before, now in zip(self._sums, batch, strict=True)] if self._sums else batch

    def matrix(self) -> Tensor:
        """CKA (layers of left, layers of right), float64; ValueError before any batch."""
        if not self._sums:
            raise ValueError("StreamingCKA: no batch was given")
        cross, left, right = self._sums
        return cross / (left[:, None] * right[None, :]).clamp_min(1e-300).sqrt()  # of constant layers, whose HSIC is 0


def _hsic_grams(layers: Sequence[Tensor]) -> Tensor:
    """Linear Gram matrices with zero diagonal (layers, n, n), float64; HSIC_1 is that of features not centred."""
    grams = torch.stack([x @ x.T for x in map(_centred, layers)])
    if grams.shape[1] < 4:
        raise ValueError(f"StreamingCKA: a batch needs at least 4 samples, got {grams.shape[1]}")
    grams.diagonal(dim1=1, dim2=2).zero_()
    return grams


def _unbiased(k: Tensor, m: Tensor) -> Tensor:
    """HSIC_1 of all pairs (a, b) of zero-diagonal Gram matrices: one matrix product for the traces."""
    n = k.shape[1]
    rows_k, rows_m = k.sum(2), m.sum(2)
    trace = k.flatten(1) @ m.flatten(1).T
    product = rows_k.sum(1)[:, None] * rows_m.sum(1)[None, :] / ((n - 1) * (n - 2))
    mixed = rows_k @ rows_m.T * (2 / (n - 2))
    return (trace + product - mixed) / (n * (n - 3))


@torch.no_grad()
def cka_between(left: Backbone, right: Backbone, images: Tensor) -> Tensor:
    """CKA (blocks of left, blocks of right) of patch tokens, drawn evenly over ``images`` (B, 3, H, W).

    Both see the same images and the same places, at most 256 an image; a batch is one image.
    Raises ValueError if their token grids differ.
    """
    streaming = StreamingCKA()
    for image in torch.split(images, 1):
        sides: list[list[Tensor]] = []
        for backbone in (left, right):
            layers = backbone.layers(image, range(1, backbone.depth + 1))
            sides.append([layer.tokens[0] for layer in layers.values()])
        if len({len(tokens) for side in sides for tokens in side}) > 1:
            raise ValueError(f"{left.spec} and {right.spec} cut images into different patches")
        count = len(sides[0][0])
        if count > TOKENS:
            picked = torch.randperm(count, generator=torch_rng(0, "cka"))[:TOKENS]
            sides = [[layer[picked.to(layer.device)] for layer in side] for side in sides]
        streaming.update(sides[0], sides[1])
    return streaming.matrix()
