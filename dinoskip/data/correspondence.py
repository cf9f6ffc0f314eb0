"""Pairs of patches, in two crops of an image, that show the same point of the scene.

They follow from the boxes that were cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Matches(NamedTuple):
    """The P patches of one view whose centres lie in the other view, and where there, by image and in raster order.

    Tokens are counted over both views of B images, view-major: (view·B + image)·grid² + row·grid + column.
    """

    tokens: Tensor  # int64 (P, 5): the patch, then the four of the other view around the same point
    weights: Tensor  # float32 (P, 4): the bilinear weights of those four; they sum to 1


@dataclass(frozen=True)
class Correspondence:
    """Finds the :class:`Matches` of the two views of every sample, each of ``grid`` × ``grid`` patches."""

    grid: int

    def __call__(self, epoch: int, indices: np.ndarray, boxes: np.ndarray, flips: np.ndarray) -> list[Tensor]:
        """``tokens`` and ``weights`` of the first view's patches, then of the second's.

        ``boxes`` int64 (B, 2, 4): top, left, height, width of the views' crops; ``flips`` bool (B, 2): whether a view
        was flipped left to right. Nothing is drawn: ``epoch`` and ``indices`` are not used.
        """
        return [tensor for view in (0, 1) for tensor in self.matches(boxes, flips, view)]

    def matches(self, boxes: np.ndarray, flips: np.ndarray, view: int) -> Matches:
        """The patches of ``view`` (0 or 1) and their places in the other.

        A point beyond the centres of the outermost patches, but inside the view, has those patches' features.
        """
        count, grid = len(boxes), self.grid
        never = np.zeros(count, dtype=bool)
        rows = self._places(boxes[:, :, 0::2], np.stack([never, never], axis=1), view)
        columns = self._places(boxes[:, :, 1::2], flips, view)
        image, row, column = np.nonzero((rows >= 0)[:, :, None] & (columns >= 0)[:, None, :])
        places = np.stack([rows[image, row], columns[image, column]])  # (2, P)
        low = np.clip(places.astype(np.int64), 0, max(0, grid - 2))
        share = places - low
        corners = low[:, None, :] + np.array([[0, 0, 1, 1], [0, 1, 0, 1]])[:, :, None]  # (2, 4, P)
        corners = np.minimum(corners, grid - 1)
        (up, left), (down, right) = 1 - share, share
        first = np.array([view, 1 - view])[:, None] * count * grid**2 + image * grid**2
        others = first[1] + corners[0] * grid + corners[1]
        tokens = np.concatenate([(first[0] + row * grid + column)[None], others])
        weights = np.stack([up * left, up * right, down * left, down * right])
        return Matches(_columns(tokens, np.int64), _columns(weights, np.float32))

    def _places(self, sides: np.ndarray, flips: np.ndarray, view: int) -> np.ndarray:
        """Return the positions along one axis of the patches of ``view`` in the other view, in its patches.

        ``sides`` (B, 2, 2): begin and length of both views in pixels; ``flips`` bool (B, 2). Returns float64 (B, grid)
        in 0..grid-1, 0 the first patch's centre; -1 is outside.
        """
        this_view, other_view = sides[:, view, :, None], sides[:, 1 - view, :, None]
        centres = (np.arange(self.grid) + 0.5) / self.grid
        centres = np.where(flips[:, view, None], 1 - centres, centres)
        place = (this_view[:, 0] + centres * this_view[:, 1] - other_view[:, 0]) / other_view[:, 1]
        inside = (place >= 0) & (place <= 1)
        place = np.where(flips[:, 1 - view, None], 1 - place, place)
        return np.where(inside, np.clip(place * self.grid - 0.5, 0, self.grid - 1), -1.0)


def _columns(rows: np.ndarray, dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows.T, dtype=dtype))
