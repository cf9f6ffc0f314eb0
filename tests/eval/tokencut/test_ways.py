"""One image cut in every way."""

from __future__ import annotations

import numpy as np
import pytest

from eval.tokencut import tokencut
from eval.tokencut.ways import agreement, cut_every_way

GRID = (5, 6)


def tokens(offset: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 8)).astype(np.float32)
    x[:9] += 3 * rng.normal(size=8).astype(np.float32)
    return x + np.float32(offset)


def test_every_way_is_the_cut_of_its_features() -> None:
    features = {"key": tokens(50.0), "out": tokens(0.0)}
    ways = cut_every_way(features, GRID, (0.2, 0.5))
    assert [(one.facet, one.centred, one.tau) for one in ways] == [
        (facet, centred, tau) for facet in features for centred in (False, True) for tau in (0.2, 0.5)
    ]
    for one in ways:
        x = features[one.facet].astype(np.float64)
        alone = tokencut((x - x.mean(0) if one.centred else x).astype(np.float32), GRID, one.tau)
        assert (one.cut.box, one.cut.seed, one.cut.complete) == (alone.box, alone.seed, alone.complete)
        unit = x - x.mean(0) if one.centred else x
        unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
        cosine = ((unit @ unit.T).sum() - 30) / (30 * 29)
        assert one.cosine == pytest.approx(cosine, abs=1e-4)
    offset = [one for one in ways if one.facet == "key"]
    assert [one.cut.complete for one in offset] == [True, True, False, False], "an offset completes the graph"


def test_agreement_is_the_mean_iou_of_pairs() -> None:
    ways = cut_every_way({"out": tokens(0.0)}, GRID, (0.1, 0.6))
    a, b, c, d = (one.cut.component for one in ways)
    pairs = [(a, b), (a, c), (a, d), (b, c), (b, d), (c, d)]
    assert agreement(ways) == pytest.approx(np.mean([(x & y).sum() / (x | y).sum() for x, y in pairs]))
    assert agreement([ways[0], ways[0]]) == 1.0
    with pytest.raises(ValueError, match="two ways"):
        agreement(ways[:1])


def test_features_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit a grid"):
        cut_every_way({"out": tokens(0.0)}, (4, 6), (0.2,))
