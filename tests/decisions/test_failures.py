"""Shares and cosines at which a cut says nothing of a network: the thresholds to the digit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit

from dinoskip.decisions.failures import failed_cuts, graphs_complete, is_lifeless, tokens_alike
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import interval, jackknife, variance

ROW = EvalResult("CorLoc", 40.0, "tokencut", "3", "voc", "val", 1000, protocol="tokencut tau=0.2 eps=1e-05")


@pytest.mark.parametrize(("cosine", "alike"), [(None, False), (0.9899, False), (0.99, True), (1.0, True)])
def test_tokens_are_alike_from_a_cosine_of_099_on(cosine: float | None, alike: bool) -> None:
    assert tokens_alike(replace(ROW, token_cosine=cosine)) is alike


@pytest.mark.parametrize(("share", "most"), [(None, False), (0.5, False), (0.501, True)])
def test_most_graphs_are_more_than_half(share: float | None, most: bool) -> None:
    assert graphs_complete(replace(ROW, complete=share)) is most
    failed = failed_cuts(replace(ROW, degenerate=share, complete=0.0))
    assert failed == ("no cut at τ = 0.2 (501 of 1000 images)" if most else "")


@pytest.mark.parametrize(("cosine", "share", "lifeless"), [(0.999, 0.4, False), (0.9, 1.0, False), (0.999, 0.6, True)])
def test_a_network_is_lifeless_where_both_hold(cosine: float, share: float, lifeless: bool) -> None:
    assert is_lifeless(replace(ROW, token_cosine=cosine, complete=share, degenerate=share)) is lifeless


def test_a_miou_has_a_logit_down_to_one_in_ten_thousand() -> None:
    inside = np.tile((np.arange(40) % 2)[:, None], (1, 2))
    union = 100_000 + 1000 * np.stack([np.arange(40) % 3, np.arange(40) % 5], -1)
    areas = np.stack([inside, union], -1)
    without = jackknife(areas)
    assert without.value - without.bias < 1e-4
    error = np.sqrt(variance(without.parts, without.lone, without.sizes))
    half = 2.0226909200367604 * np.hypot(error, without.bias / 2) / (1e-4 * (1 - 1e-4))  # Student's t of 39 degrees
    low, high = interval(areas, np.ones(2))
    assert low == pytest.approx(min(without.value, expit(logit(1e-4) - half)), rel=1e-3)
    assert high == pytest.approx(expit(logit(1e-4) + half), rel=1e-3)
