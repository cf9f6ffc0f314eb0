"""Edges of photographs, and how well borders of label maps and sides of boxes follow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.segmentation import IGNORE
from dinoskip.io.images import opencv

SIDE = 192  # pixels of the longer side at which edges are looked for
FEWEST = 20  # pixels of border in a file that says something
Ranks = NDArray[np.float32]


def small_image(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture uint8 (H, W, 3) with its longer side at most :data:`SIDE` pixels, by the mean of areas."""
    height, width = image.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small: NDArray[Any] = opencv().resize(image, size, interpolation=opencv().INTER_AREA)
    return small.astype(np.uint8)


def _slopes(image: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The change of colour along x and along y, float32 (H, W) each, after a blur of one pixel."""
    cv2 = opencv()
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), 1.0)
    across, down = (np.sqrt((np.asarray(cv2.Sobel(smooth, -1, *axes)) ** 2).sum(2)) for axes in ((1, 0), (0, 1)))
    return across, down


def _ranks(values: NDArray[np.float32]) -> Ranks:
    """Widen by one pixel, and return each pixel's rank in its image, 0..1; equal values share their mean rank."""
    widened = opencv().dilate(values, np.ones((3, 3), np.uint8))
    _, places, counts = np.unique(widened, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2 - 0.5
    return np.asarray((mean_rank / widened.size).astype(np.float32)[places.reshape(widened.shape)])


def edge_ranks(image: NDArray[np.uint8]) -> Ranks:
    """Rank the edges of a picture (H, W, 3): float32 (H, W), near 1 on its strongest edges."""
    across, down = _slopes(image)
    return _ranks(np.hypot(across, down))


def without_void(labels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8] | None:
    """Return a label map at ``size`` (height, width), void given to its nearest label; None if all of it is void."""
    cv2 = opencv()
    small = np.asarray(cv2.resize(labels, size[::-1], interpolation=cv2.INTER_NEAREST))
    void = small == IGNORE
    if void.all():
        return None
    if void.any():
        _, nearest = cv2.distanceTransformWithLabels(
            void.astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
        )
        by_number = np.zeros(int(nearest.max()) + 1, small.dtype)
        by_number[nearest[~void]] = small[~void]
        small = by_number[nearest]
    return small.astype(np.uint8)


def borders_of(labels: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """Whether each pixel of a label map (H, W) has a neighbour of another label; None for too short borders."""
    border = np.zeros(labels.shape, bool)
    down, across = labels[1:] != labels[:-1], labels[:, 1:] != labels[:, :-1]
    border[1:] |= down
    border[:-1] |= down
    border[:, 1:] |= across
    border[:, :-1] |= across
    return border if border.sum() >= FEWEST else None


def mask_level(ranks: Ranks, labels: NDArray[np.uint8]) -> float | None:
    """Mean rank of edges on the borders of a label map, void given to its nearest label; None for too short borders."""
    size = ranks.shape[0], ranks.shape[1]
    small = without_void(labels, size)
    border = None if small is None else borders_of(small)
    return None if border is None else float(ranks[border].mean())


@dataclass(frozen=True)
class BoxEdges:
    """Features of a picture with which the sides of boxes are compared.

    They are the ranks of edges across and down (H, W), and coarse colours.
    """

    across: Ranks
    down: Ranks
    coarse: NDArray[np.int64]

    @classmethod
    def of(cls, image: NDArray[np.uint8]) -> BoxEdges:
        """The edges of a picture uint8 (H, W, 3)."""
        across, down = (_ranks(slope) for slope in _slopes(image))
        return cls(across, down, (image.astype(np.int64) // 64) @ np.array([16, 4, 1]))

    def level(self, boxes: Ranks) -> float | None:
        """Return how much boxes, x1 y1 x2 y2 in shares of the sides, follow the picture: the mean over boxes.

        That is the mean rank of edges across each side, on its middle two thirds, sides at the picture's border left
        out, and half the distance between the colours inside and those in a ring around. None if no box says anything.
        """
        height, width = self.coarse.shape
        found = []
        for box in np.round(boxes * np.array([width, height] * 2)).astype(int):
            x1, y1, x2, y2 = box.tolist()
            if min(x2 - x1, y2 - y1) < 6:
                continue  # too small at this size to have sides
            ys, xs = slice(y1 + (y2 - y1) // 6, y2 - (y2 - y1) // 6), slice(x1 + (x2 - x1) // 6, x2 - (x2 - x1) // 6)
            sides = [self.across[ys, x - 1 : x + 1].mean() for x in (x1, x2) if 2 <= x <= width - 2]
            sides += [self.down[y - 1 : y + 1, xs].mean() for y in (y1, y2) if 2 <= y <= height - 2]
            if sides:
                found.append(float(np.mean(sides)) + 0.5 * _distance(self.coarse, (x1, y1, x2, y2)))
        return float(np.mean(found)) if found else None


def _distance(coarse: NDArray[np.int64], box: tuple[int, int, int, int]) -> float:
    """Half the summed difference, 0..1, between the shares of coarse colours in a box and in a ring around it."""
    x1, y1, x2, y2 = box
    dx, dy = max(1, (x2 - x1) // 4), max(1, (y2 - y1) // 4)
    inside = np.bincount(coarse[max(0, y1) : y2, max(0, x1) : x2].ravel(), minlength=64)
    around = coarse[max(0, y1 - dy) : y2 + dy, max(0, x1 - dx) : x2 + dx]
    ring = np.bincount(around.ravel(), minlength=64) - inside
    if not inside.sum() or not ring.sum():
        return 0.0
    return float(np.abs(inside / inside.sum() - ring / ring.sum()).sum() / 2)
