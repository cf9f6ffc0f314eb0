from __future__ import annotations

import numpy as np

from dinoskip.runtime.randomness import uniforms


def test_uniform_rows_depend_on_their_own_number() -> None:
    drawn = uniforms(3, "x", 1, numbers=np.arange(2000), count=50)
    assert drawn.shape == (2000, 50)
    assert (uniforms(3, "x", 1, numbers=np.array([7, 1999, 7]), count=50) == drawn[[7, 1999, 7]]).all()
    assert (uniforms(3, "x", 1, numbers=np.array([7]), count=9)[0] == drawn[7, :9]).all()


def test_they_are_uniform_and_independent() -> None:
    drawn = uniforms(3, "x", 1, numbers=np.arange(2000), count=50)
    assert 0 <= drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 160  # chi-squared of 99 degrees of freedom: 1 in 10,000
    others = [uniforms(*path, numbers=np.arange(2000), count=50) for path in ((4, "x", 1), (3, "y", 1), (3, "x", 2))]
    neighbours = [(drawn[:, 1:], drawn[:, :-1]), (drawn[1:], drawn[:-1])]
    for one, two in neighbours + [(drawn, other) for other in others]:
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.015
    assert len(np.unique(np.concatenate([drawn, *others]))) == 4 * drawn.size
