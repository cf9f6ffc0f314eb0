"""Token Graying (Always Skip Attention, sec. 5): better-conditioned raw patches, before any ViT's patch embedding.

A patch is the flattened (C, ph, pw) window that the patch embedding's convolution sees, an image's tokens X are its
n patches (n, d), d = C·p². The smaller "values" of X are amplified and its largest is kept, v' = v_max (v/v_max)^ε:
singular values in the SVD variant, coefficients of the orthonormal 2-D DCT-II (signs kept) in the DCT variant.
ε = 1 changes nothing; the paper's default is 0.95. Nothing is learned and no gradient flows back to the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, get_args

import torch
from timm.layers import PatchEmbed
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.settings.vit_config import GrayingConfig, Kind


class TokenGraying(nn.Module):
    """Images to images of the same shape and dtype; computed in float32, or float64 for float64 images.

    ``patch_size`` is that of the ViT that follows: ``nn.Sequential(graying, vit)`` grays the inputs of any ViT,
    ``create_model(..., graying=GrayingConfig())`` builds it into one of ours. It has no parameters.
    Raises :class:`ConfigError` for an unknown kind and for ``epsilon`` outside (0, 1].
    """

    def __init__(self, patch_size: int, kind: Kind = "dct", epsilon: float = 0.95) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise ConfigError(f"token graying: kind {kind!r} is none of {', '.join(get_args(Kind))}")
        if not 0 < epsilon <= 1:
            raise ConfigError(f"token graying: epsilon={epsilon} is not in (0, 1]")
        if patch_size < 1:
            raise ConfigError(f"token graying: patch_size={patch_size} must be at least 1")
        self.patch_size, self.kind, self.epsilon = patch_size, kind, epsilon

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Gray images (B, C, H, W); ValueError if the sides are not multiples of the patch size."""
        function: Callable[[Tensor, float], Tensor] = svd_graying if self.kind == "svd" else dct_graying
        tokens = patches(images, self.patch_size)
        with torch.autocast(images.device.type, enabled=False):
            grayed = function(tokens if tokens.dtype == torch.float64 else tokens.float(), self.epsilon)
        return images_of(grayed, images.shape, self.patch_size).to(images.dtype)

    def extra_repr(self) -> str:
        """Return the text that printing the module shows."""
        return f"patch_size={self.patch_size}, kind={self.kind!r}, epsilon={self.epsilon}"


class GrayingPatchEmbed(PatchEmbed):
    """timm's patch embedding of images that are grayed first; the same parameters under the same names."""

    def __init__(self, *args: Any, graying: GrayingConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.graying = TokenGraying(self.patch_size[0], graying.kind, graying.epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to patch tokens as timm's does; ValueError unless H and W are whole patches."""
        embedded: Tensor = super().forward(self.graying(x))  # type: ignore[no-untyped-call]  # timm's has no annotations
        return embedded


def patches(images: Tensor, patch_size: int) -> Tensor:
    """Raw tokens (B, h·w, C·p²) of images (B, C, h·p, w·p): rows in raster order, each flattened (C, ph, pw)."""
    batch, channels, height, width = images.shape
    if height % patch_size or width % patch_size:
        raise ValueError(f"images of {height}×{width} pixels are not whole patches of {patch_size}")
    rows, columns = height // patch_size, width // patch_size
    grid = images.reshape(batch, channels, rows, patch_size, columns, patch_size)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * patch_size**2)


def images_of(tokens: Tensor, shape: torch.Size, patch_size: int) -> Tensor:
    """Images of ``shape`` (B, C, H, W) from :func:`patches` of them."""
    batch, channels, height, width = shape
    grid = tokens.reshape(batch, height // patch_size, width // patch_size, channels, patch_size, patch_size)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(shape)


# 0.95, here and below: the amplification that "Always Skip Attention" states as its default.
def svd_graying(tokens: Tensor, eps: float = 0.95) -> Tensor:
    """X' = U S' Vᵀ with S' = s_max (S/s_max)^ε for tokens (..., n, d), so that ln κ(X') = ε ln κ(X)."""
    u, s, vh = torch.linalg.svd(tokens, full_matrices=False)
    grayed: Tensor = (u * _amplified(s, s[..., :1], eps)[..., None, :]) @ vh
    return grayed


def dct_graying(tokens: Tensor, eps: float = 0.95) -> Tensor:
    """X' = D_nᵀ C' D_d with C = D_n X D_dᵀ, C' = m sign(C) (|C|/m)^ε, m = max |C|, for tokens (..., n, d).

    D are orthonormal DCT-II matrices. The paper prints one D on both sides and a transform that is not orthonormal;
    its inverse is then not Dᵀ.
    """
    along_n, along_d = (_dct_matrix(size, tokens.dtype, tokens.device) for size in tokens.shape[-2:])
    coefficients = along_n @ tokens @ along_d.T
    sizes = coefficients.abs()
    grayed = coefficients.sign() * _amplified(sizes, sizes.amax((-2, -1), keepdim=True), eps)
    return along_n.T @ grayed @ along_d


def _amplified(values: Tensor, largest: Tensor, eps: float) -> Tensor:
    """largest · (values / largest)^eps; zero where all are zero."""
    return largest * (values / largest.clamp_min(torch.finfo(values.dtype).tiny)).pow(eps)


@lru_cache(maxsize=16)
def _dct_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Orthonormal DCT-II matrix (size, size), D Dᵀ = I: row k is cos(π (i + ½) k / size), scaled."""
    index = torch.arange(size, dtype=torch.float64, device=device)
    matrix: Tensor = torch.cos(math.pi / size * (index + 0.5) * index[:, None]) * (2.0 / size) ** 0.5
    matrix[0] *= 0.5**0.5
    return matrix.to(dtype)
