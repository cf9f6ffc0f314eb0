"""Search of the position in another image whose feature is most similar to a keypoint's, by four published rules.

A feature map upsampled bilinearly to pixels is never made: the score of a pixel is the upsampled score of the patches,
and the length of its feature follows from the products of neighbouring patches (:func:`upsampled_lengths`).

Shapes: h·w patches, C channels, n points x y, H·W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from dinoskip_video.correspondence.config import CorrespondenceConfig
from eval.upsampling import pixel_centres

F64 = NDArray[np.float64]
Size = tuple[int, int]


@dataclass(frozen=True)
class Placement:
    """Position of an image of ``original`` (height, width) in the network's square input of ``side`` pixels.

    ``scale`` and ``offset`` are those of x and y: input = original · scale + offset.
    """

    original: Size
    side: int
    scale: tuple[float, float]
    offset: tuple[int, int]

    @classmethod
    def of(cls, original: Size, config: CorrespondenceConfig) -> Placement:
        """Squash the image to the square, or keep its proportions and centre it, by the protocol."""
        (height, width), side = original, config.size
        if not config.padded:
            return cls(original, side, (side / width, side / height), (0, 0))
        high, wide = padded_size(original, side)
        scale = side / max(original)
        return cls(original, side, (scale, scale), (int((side - wide) / 2), int((side - high) / 2)))

    def into(self, points: F64) -> F64:
        """Points of the image in the input."""
        return np.asarray(points * np.array(self.scale) + np.array(self.offset))

    def back(self, points: F64) -> F64:
        """Points of the input in the image."""
        return np.asarray((points - np.array(self.offset)) / np.array(self.scale))


def padded_size(original: Size, side: int) -> Size:
    """Return the (height, width) at which the longer side is ``side``; the other is rounded, halves to even."""
    high, wide = (int(np.around(side * length / max(original))) for length in original)
    return max(1, high), max(1, wide)


@dataclass(frozen=True)
class Matched:
    """Points found (n, 2) and wanted (n, 2), and the length that thresholds are a share of, in the same pixels."""

    found: F64
    wanted: F64
    extent: float

    def hits(self, alpha: float, strict: bool) -> NDArray[np.bool_]:
        """Return whether each point's error is at most ``alpha`` · extent, bool (n,).

        With ``strict`` it must be less.
        """
        error = np.sqrt(((self.found - self.wanted) ** 2).sum(1))
        limit = alpha * self.extent
        return np.asarray(error < limit if strict else error <= limit)


class Matcher:
    """Finds keypoints by the rules of a protocol, on maps of ``grid`` (h, w) patches of ``patch`` pixels."""

    def __init__(self, config: CorrespondenceConfig, grid: Size, patch: int) -> None:
        self.config, self.grid, self.patch = config, grid, patch

    def descriptors(self, tokens: Tensor, points: F64, place: Placement) -> Tensor:
        """Return the unit features (n, C) of points of an image, from its tokens (h·w, C)."""
        if self.config.protocol == "lift":
            return sampled(normalize(tokens.float(), dim=-1), self.grid, self.positions(points, place))
        return normalize(sampled(tokens.float(), self.grid, self.positions(points, place)), dim=-1)

    def positions(self, points: F64, place: Placement) -> F64:
        """Return the positions (n, 2) on the map at which points of an image are read.

        They are in patches from the centre of the first patch.
        """
        high, wide = self.grid
        cells, last = np.array([wide, high]), np.array([wide - 1, high - 1])
        if self.config.protocol == "dift":  # the whole pixel, of the map upsampled to the image
            height, width = place.original
            pixels = np.trunc(points).clip(0, (width - 1, height - 1))
            spots = (pixels + 0.5) * cells / (width, height) - 0.5
        elif self.config.protocol == "lift":  # the same of the input
            pixels = np.floor(place.into(points)).clip(0, place.side - 1)
            spots = (pixels + 0.5) * cells / place.side - 0.5
        elif self.config.protocol == "sd-dino":  # the patch that contains the point
            spots = np.trunc(cells / place.side * place.into(points))
        else:
            spots = place.into(points) / self.patch - 0.5
        return np.asarray(spots.clip(0, last))

    def prepared(self, tokens: Tensor, place: Placement) -> tuple[Tensor, Tensor | None]:
        """Return what a target image is searched by: its tokens (h·w, C), and the inverse lengths (H, W) of pixels.

        Tokens have unit length except by dift, whose pixels have their own.
        """
        if self.config.protocol != "dift":
            return normalize(tokens.float(), dim=-1), None
        lengths = upsampled_lengths(tokens.float().view(*self.grid, -1), place.original)
        return tokens.float(), lengths.clamp(min=1e-12).reciprocal()  # as normalize: a zero vector stays zero

    def match(
        self, descriptors: Tensor, target: tuple[Tensor, Tensor | None], points: F64, extent: float, place: Placement
    ) -> Matched:
        """Find ``descriptors`` (n, C) in a target (:meth:`prepared`), whose true ``points`` are in original pixels."""
        tokens, inverse = target
        scores = (descriptors @ tokens.T).view(1, -1, *self.grid)
        if self.config.protocol in {"dift", "lift"}:
            size = place.original if inverse is not None else (place.side, place.side)
            wide = interpolate(scores, size=size, mode="bilinear", align_corners=False)[0]
            if inverse is not None:
                wide *= inverse
            pixels = _first_alike(_places(wide), size, self.grid)
            if inverse is not None:
                return Matched(pixels, points, extent)
            return Matched(pixels, place.into(points), extent * place.scale[0])
        patches = _places(scores[0])
        if self.config.protocol == "sd-dino":
            found = patches * self.patch + (self.patch // 2 - 0.5)
            return Matched(found, place.into(points), extent * place.scale[0])
        return Matched(place.back((patches + 0.5) * self.patch), points, extent)


def _places(scores: Tensor) -> F64:
    """Column and row (n, 2) of the largest score of each map (n, rows, columns); the first of equals."""
    best = scores.flatten(1).argmax(1)
    columns = scores.shape[-1]
    return np.asarray(torch.stack([best % columns, best // columns], 1).double().cpu().numpy())


def _first_alike(pixels: F64, size: Size, grid: Size) -> F64:
    """Pixels (n, 2) x y moved to the first that has the same feature: beyond the outermost patches all are alike.

    Rounding would choose among them.
    """
    moved = pixels.copy()
    for axis, (length, cells) in enumerate(zip(size[::-1], grid[::-1], strict=True)):
        _, first, group = np.unique(pixel_centres(length, cells).numpy(), return_index=True, return_inverse=True)
        moved[:, axis] = first[group][pixels[:, axis].astype(np.int64)]
    return moved


def sampled(tokens: Tensor, grid: Size, spots: F64) -> Tensor:
    """Return the features (n, C) of tokens (h·w, C), bilinear at ``spots`` (n, 2) x y in patches, all on the map."""
    high, wide = grid
    low = np.floor(spots).astype(np.int64)
    part = torch.from_numpy(spots - low).to(tokens)
    near = torch.from_numpy(np.minimum(low + 1, (wide - 1, high - 1))).to(tokens.device)
    first = torch.from_numpy(low).to(tokens.device)
    x, y = part[:, :1], part[:, 1:]

    def at(column: Tensor, row: Tensor) -> Tensor:
        return tokens[row * wide + column]

    above = at(first[:, 0], first[:, 1]) * (1 - x) + at(near[:, 0], first[:, 1]) * x
    below = at(first[:, 0], near[:, 1]) * (1 - x) + at(near[:, 0], near[:, 1]) * x
    return above * (1 - y) + below * y


def upsampled_lengths(maps: Tensor, size: Size) -> Tensor:
    """Return the lengths (H, W) of the features of a map (h, w, C) upsampled bilinearly (align_corners=False).

    A pixel's feature is a mean of four neighbours, so its square is a sum of their products, along x and then along y.
    Computed in float64, returned in the map's dtype.
    """

    def products(left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("ijc,ijc->ij", left, right).double()

    padded = torch.cat([maps, maps[-1:]])
    padded = torch.cat([padded, padded[:, -1:]], 1)  # so that every patch has a neighbour to the right and below
    here, right, below, across = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    (rows, y), (columns, x) = (
        _cells(pixels, cells, maps.device) for pixels, cells in zip(size, maps.shape[:2], strict=True)
    )

    def along(first: Tensor, mixed: Tensor, last: Tensor) -> Tensor:
        """(h, W): products at the columns' places, of those at patches, of neighbours, and at the next patches."""
        return first[:, columns] * (1 - x) ** 2 + mixed[:, columns] * x * (1 - x) + last[:, columns] * x**2

    same = along(products(here, here), 2 * products(here, right), products(right, right))
    next_row = along(products(below, below), 2 * products(below, across), products(across, across))
    mixed = products(here, across) + products(right, below)
    between = along(products(here, below), mixed, products(right, across))
    y = y[:, None]
    squares = same[rows] * (1 - y) ** 2 + 2 * between[rows] * y * (1 - y) + next_row[rows] * y**2
    return squares.clamp(min=0).sqrt().to(maps.dtype)


def _cells(pixels: int, cells: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each pixel the patch before it, and how far behind that one's centre it lies, float64 in 0..1."""
    places = pixel_centres(pixels, cells)
    before = places.floor().long()
    return before.to(device), (places - before).to(device)
