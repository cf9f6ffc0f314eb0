"""Colours that mean the same thing on every page and figure, safe for colour-blind readers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

# Okabe and Ito's set, without black and yellow (too close to ink and paper), in the order variants get them;
# the second of each pair is lighter, for dark backgrounds.
VARIANT_COLOURS = (
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#FF8A3D"),
    ("#009E73", "#2CCB9F"),
    ("#B4558A", "#E79BC4"),
    ("#8A6D00", "#E6B422"),
    ("#5B5F97", "#A6A9E0"),
)

# Low, middle and high of the eigenvector map: blue is background, paper is the split, orange is foreground.
_DIVERGING = ((38, 84, 152), (243, 241, 236), (201, 84, 28))
# From nothing to much, evenly lighter: matplotlib's magma (CC0) at six places.
_SEQUENTIAL = ((0, 0, 4), (59, 15, 112), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191))


_SEED = re.compile(r"(-s\d+|, seed \d+)$")
_MOMENT = re.compile(r"( ep\d+|, before training|, after \d+ epochs?)$")


def network_of(name: str) -> str:
    """A network's name without the epoch, of names in files and on pages."""
    return _MOMENT.sub("", name)


def variant_places(names: Sequence[str]) -> dict[str, int]:
    """Each variant's place in the order of colours, six to a round; a later round has other dashes and marks.

    Seeds and epochs of one network (``skip-soap-s0``, ``skip-soap-s1 ep30``) have the same colour, each of them in a
    round of its own.
    """
    networks: dict[str, list[str]] = {}
    for name in names:
        networks.setdefault(_SEED.sub("", network_of(name)), []).append(name)
    rounds = -(-len(networks) // len(VARIANT_COLOURS))
    return {
        name: number + later * rounds * len(VARIANT_COLOURS)
        for number, members in enumerate(networks.values())
        for later, name in enumerate(members)
    }


def variant_colour(place: int, dark: bool = False) -> str:
    """Hex colour of a place of :func:`variant_places`; they repeat after six."""
    return VARIANT_COLOURS[place % len(VARIANT_COLOURS)][dark]


def _ramp(stops: Sequence[tuple[int, int, int]], levels: int) -> np.ndarray:
    at = np.linspace(0, len(stops) - 1, levels)
    channels = [np.interp(at, np.arange(len(stops)), np.array(stops, np.float64)[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8)


def diverging(levels: int) -> np.ndarray:
    """Return uint8 (levels, 3): blue to orange, paper white in the middle; odd ``levels`` have a middle."""
    return _ramp(_DIVERGING, levels)


def sequential(levels: int) -> np.ndarray:
    """Return uint8 (levels, 3): black over violet to pale yellow, lightness growing evenly."""
    return _ramp(_SEQUENTIAL, levels)


def to_hex(colour: Sequence[int] | np.ndarray) -> str:
    """``#rrggbb`` of three integers 0..255."""
    red, green, blue = (int(part) for part in colour)
    return f"#{red:02x}{green:02x}{blue:02x}"
