"""Features of pixels without any network: what a task's data give away by colour, and by single patches.

``colours``: mean and deviation of each colour channel in a patch and in its image, with all products of two: a linear
head on them is a quadratic rule of colours. ``random patch``: the pixels of a patch through one random layer. Neither
sees beyond its patch but for the image's colours, so a number that is not above theirs shows nothing of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad, unfold

from dinoskip.features.transform import Transform, load_pixels
from dinoskip.io.images import image_size
from dinoskip.runtime.randomness import torch_rng

RANDOM_CHANNELS = 256  # more: a stronger baseline, as dear as the 384 channels of a ViT-S
_MIDDLE, _SPREAD = 0.45, 0.25  # of photographs' pixels, 0..1: both features are of pixels brought to about -2..2
_EPS = 1e-6  # keeps channels that are constant over all images at 0


def colours(images: Tensor, patch: int) -> Tensor:
    """Colours of patches and of their image, all products of two: (B, T, 90) of images (B, 3, H, W) about -2..2."""
    mean, square = avg_pool2d(images, patch), avg_pool2d(images.square(), patch)
    deviation = (square - mean.square()).clamp_min(0).sqrt()
    of_patches = torch.cat([mean, deviation], 1).flatten(2).transpose(1, 2)  # (B, T, 6)
    of_images = torch.cat([images.mean((2, 3)), images.flatten(2).std(2, correction=0)], 1)
    first = torch.cat([of_patches, of_images[:, None].expand_as(of_patches)], 2)
    row, column = torch.triu_indices(12, 12)
    return torch.cat([first, first[..., row] * first[..., column]], 2)


def random_patch(images: Tensor, patch: int) -> Tensor:
    """ReLU of a random affine map of each patch's pixels: (B, T, 256) of images (B, 3, H, W) about -2..2."""
    pixels = unfold(images, patch, stride=patch).transpose(1, 2)  # (B, T, 3 p²)
    rng = torch_rng(0, "random patch", patch)
    weight = torch.randn(pixels.shape[2], RANDOM_CHANNELS, generator=rng) / pixels.shape[2] ** 0.5
    return torch.relu(pixels @ weight + torch.randn(RANDOM_CHANNELS, generator=rng))


PIXEL_FEATURES: Mapping[str, Callable[[Tensor, int], Tensor]] = {"colours": colours, "random patch": random_patch}


class NamedFiles(Protocol):
    """The part of a labelled set that is read here."""

    def path(self, index: int) -> Path: ...  # noqa: D102


class FilesOfSet(NamedFiles, Protocol):
    """The same of a set whose images are named."""

    @property
    def ids(self) -> Sequence[str]: ...  # noqa: D102


@dataclass(frozen=True)
class PixelTokens:
    """Tokens of pixels of a set's images ``places``, sized as features of a network with such patches are.

    Computed when they are read; of images of one size indexable as stored tokens are (:class:`LabelledTokens`).
    """

    make: Callable[[Tensor, int], Tensor]
    dataset: NamedFiles
    places: Sequence[int]
    transform: Transform
    patch: int

    def of(self, i: int) -> NDArray[np.float32]:
        """Return tokens (T, C) of image ``i``, row by row of its grid."""
        image = load_pixels(self.transform, self.dataset.path(self.places[i]), self.patch).float() / 255
        height, width = image.shape[1:]
        standard = pad((image - _MIDDLE) / _SPREAD, (0, -width % self.patch, 0, -height % self.patch))
        return np.asarray(self.make(standard[None], self.patch)[0].numpy())

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return (n, T, C) of images of one size."""
        return np.stack([self.of(int(i)) for i in rows])

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(N, T, C), by the first image."""
        return len(self.places), *self.of(0).shape

    def standardised(self) -> Callable[[int], NDArray[np.float32]]:
        """Return a function from an image's number to its standardised tokens (T, C), float32.

        Their channels have mean 0 and variance 1 over all images' tokens.
        """
        sums = squares = np.zeros(self.shape[2])
        count = 0
        for i in range(len(self.places)):
            tokens = self.of(i).astype(np.float64)
            sums, squares, count = sums + tokens.sum(0), squares + np.square(tokens).sum(0), count + len(tokens)
        mean = sums / count
        scale = 1 / np.sqrt(np.maximum(squares / count - np.square(mean), 0) + _EPS)
        return lambda i: ((self.of(i) - mean) * scale).astype(np.float32)


@dataclass(frozen=True)
class PixelSizes:
    """Sizes of the images at ``places`` of a set for a network with patches of ``patch_size``."""

    places: Sequence[int]
    transform: Transform
    patch_size: int
    grids: tuple[tuple[int, int], ...]
    dim: int = RANDOM_CHANNELS  # of the widest, by which memory is reckoned

    @classmethod
    def of(
        cls, dataset: FilesOfSet, transform: Transform, patch: int, places: Sequence[int] | None = None
    ) -> PixelSizes:
        """Sizes of all images, or of those at ``places``; of images of one size the first is read alone."""
        chosen = range(len(dataset.ids)) if places is None else places
        read = chosen if transform.ragged else chosen[:1]
        sizes = [transform.padded_size(*image_size(dataset.path(i)), patch) for i in read]
        return cls(chosen, transform, patch, tuple((height // patch, width // patch) for height, width in sizes))

    def grid(self, i: int) -> tuple[int, int]:
        """Return (h, w) in patches of image ``i``."""
        return self.grids[i if self.transform.ragged else 0]


def pixel_tokens(
    dataset: NamedFiles, places: Sequence[int], transform: Transform, patch: int
) -> dict[str, PixelTokens]:
    """Tokens of every one of :data:`PIXEL_FEATURES`, of a set's images at these places."""
    return {name: PixelTokens(make, dataset, places, transform, patch) for name, make in PIXEL_FEATURES.items()}
