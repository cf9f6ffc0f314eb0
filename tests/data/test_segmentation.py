from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.data.segmentation import draw


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=6), unique=True, min_size=2, max_size=12), st.integers(0, 2**32), st.randoms())
def test_a_draw_depends_on_ids_and_seed_alone(ids: list[str], seed: int, rng: random.Random) -> None:
    mixed = rng.sample(ids, len(ids))
    previous: set[str] = set()
    for count in range(1, len(ids) + 1):
        chosen = draw(ids, count, seed)
        assert list(chosen) == sorted(set(chosen))
        assert len(chosen) == count
        assert {ids[i] for i in chosen} == {mixed[i] for i in draw(mixed, count, seed)}
        assert previous < {ids[i] for i in chosen}
        previous = {ids[i] for i in chosen}


def test_a_draw_is_known_and_uniform() -> None:
    ids = [f"ADE_train_{number:08}" for number in range(1, 201)]
    assert draw(ids, 4, 0) == draw(ids, 4, 0) != draw(ids, 4, 1)
    counts = np.zeros(200)
    for seed in range(300):
        counts[list(draw(ids, 50, seed))] += 1
    assert counts.sum() == 300 * 50
    # binomial with mean 75 and standard deviation 7.5; the largest of 200 lies within 5 of them
    assert np.abs(counts - 75).max() < 5 * 7.5
