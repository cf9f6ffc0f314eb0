"""Seeded subsets that depend on the ids alone: not on the order of a listing, nor on which other images are there."""

from __future__ import annotations

from collections.abc import Sequence

from dinoskip.errors import ConfigError
from dinoskip.randomness import derive


def draw(ids: Sequence[str], count: int, seed: int) -> tuple[int, ...]:
    """Positions of ``count`` ids, in ascending order: those of smallest ``derive(seed, "subset", id)``.

    A smaller subset of the same seed lies inside a larger one. Raises :class:`ConfigError` if there are fewer ids.
    """
    if count > len(ids):
        raise ConfigError(f"subset: {count} images are asked for, the list has {len(ids)}", "ask for fewer, or for all")
    ranked = sorted(range(len(ids)), key=lambda position: (derive(seed, "subset", ids[position]), ids[position]))
    return tuple(sorted(ranked[:count]))
