"""Colours that mean the same thing on every page and figure, safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Okabe and Ito's set, without black and yellow (too close to ink and paper), in the order variants get them;
# the second of each pair is lighter, for dark backgrounds.
_VARIANTS = (
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#FF8A3D"),
    ("#009E73", "#2CCB9F"),
    ("#B4558A", "#E79BC4"),
    ("#8A6D00", "#E6B422"),
    ("#5B5F97", "#A6A9E0"),
)

# Low, middle and high of the eigenvector map: blue is background, paper is the split, orange is foreground.
_DIVERGING = np.array([(38, 84, 152), (243, 241, 236), (201, 84, 28)], np.float64)


def variant_colours(count: int, dark: bool = False) -> list[str]:
    """Hex colours of variants 0..count-1 in the order a study lists them; they repeat after six."""
    return [_VARIANTS[index % len(_VARIANTS)][dark] for index in range(count)]


def diverging_rgb(values: np.ndarray, middle: float) -> np.ndarray:
    """Colour ``values`` (any shape, float) blue to orange with ``middle`` at paper white; uint8 (..., 3).

    The half ranges are scaled by the larger distance of the 2 and 98 % quantiles from the middle, so that
    equal distances from the split look equally strong.
    """
    values = np.nan_to_num(values.astype(np.float64), nan=middle)
    low, high = np.quantile(values, (0.02, 0.98))
    reach = max(middle - low, high - middle, 1e-12)
    position = np.clip((values - middle) / reach, -1.0, 1.0)[..., None]
    below = _DIVERGING[1] + (_DIVERGING[1] - _DIVERGING[0]) * np.minimum(position, 0.0)
    above = (_DIVERGING[2] - _DIVERGING[1]) * np.maximum(position, 0.0)
    return np.asarray(np.rint(below + above), np.uint8)


def to_hex(colour: Sequence[int] | np.ndarray) -> str:
    """``#rrggbb`` of three integers 0..255."""
    red, green, blue = (int(part) for part in colour)
    return f"#{red:02x}{green:02x}{blue:02x}"
