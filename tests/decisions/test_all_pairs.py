"""All pairs of a leaderboard at once: the verdicts and numbers of comparing them one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dinoskip.decisions.all_pairs import decide_all
from dinoskip.decisions.choosing import Score
from dinoskip.decisions.comparing import NetworkScores, compared_pair, decide
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import SHOWN, EvalResult

IDS = tuple(f"image{number}" for number in range(40))


def row_of(rng: random.Random, metric: str, **fields: object) -> EvalResult:
    value = round(rng.uniform(40, 44), 1)  # rounded, so that some are equal
    about = {"task": "depth" if metric == "RMSE" else "probe", "model": "net", "block": "3", "dataset": "a"}
    return replace(EvalResult(metric, value, "probe", "3", "a", "val", 1449), **{**about, **fields})  # type: ignore[arg-type]


def side_of(rng: random.Random, number: int, metric: str, kinds: str) -> NetworkScores:
    """A network with an interval, or without one, or of few images, or chosen on the images shown, or with records."""
    kind = rng.choice(kinds)
    row = row_of(rng, metric, model=f"net{number}", n=4 if kind == "few" else rng.choice([0, 900, 1449]))
    if kind == "dead":
        row = replace(row, token_cosine=1.0, degenerate=1.0, complete=1.0)
    half = 0.0 if kind == "exact" else rng.uniform(0.1, 0.6)
    low, high = (None, None) if kind == "unknown" else (row.value - half, row.value + half)
    score = Score(row, row.value, ("3",), low, high, selected=SHOWN if kind == "shown" else "fixed")
    before: tuple[Score, ...] = ()
    if kind == "started":
        before = (replace(score, value=row.value - rng.uniform(0, 2), low=row.value - 3, high=row.value - 1),)
    if kind == "recorded":
        values = np.array([rng.random() < row.value / 100 for _ in IDS], float)
        score = replace(score, value=100 * float(values.mean()), outcomes=(ImageRecords(IDS, values),))
    return NetworkScores(row.model, (score,), before, "no rate" if kind == "unresolved" else "")


KINDS = ("plain", "plain", "plain", "few", "exact", "unknown", "shown", "dead", "started", "recorded", "unresolved")


@pytest.mark.parametrize("metric", ["mIoU", "RMSE"])
@pytest.mark.parametrize("kinds", [("plain",), ("plain", "few", "exact", "unknown"), KINDS, ("recorded", "started")])
@pytest.mark.parametrize("count", [1, 2, 9, 16])
def test_verdicts_are_those_of_one_pair_after_another(metric: str, kinds: tuple[str, ...], count: int) -> None:
    rng = random.Random(f"{metric}{kinds}{count}")
    sides = sorted((side_of(rng, number, metric, kinds) for number in range(count)), key=lambda side: -side.value)  # type: ignore[arg-type]
    made = {(a, b): compared_pair(sides[a], sides[b]) for a, b in combinations(range(count), 2)}
    pairs = {places: pair for places, pair in made.items() if pair is not None}
    wanted = dict(zip(pairs, decide(list(pairs.values())), strict=True))
    found = decide_all(sides)
    assert {(a, b): found.signs[a, b] for a, b in wanted} == {places: one.sign for places, one in wanted.items()}
    assert not [places for places in made if places not in wanted and found.signs[places]]
    assert not np.tril(found.signs).any()
    of_first = {b: repr(one) for (a, b), one in wanted.items() if a == 0}
    assert {b: repr(verdict) for b, (_, verdict) in found.with_first.items()} == of_first, "every digit of p"
    for b, (pair, _) in found.with_first.items():
        assert repr(pair.judgement) == repr(pairs[0, b].judgement)
    for at in range(count):
        above = sum(wanted[other, at].sign > 0 for other in range(at) if (other, at) in wanted)
        below = sum(wanted[at, other].sign > 0 for other in range(at + 1, count) if (at, other) in wanted)
        assert found.places(at) == (1 + above, count - below)


def test_no_network_has_no_pairs() -> None:
    assert decide_all([]).signs.shape == (0, 0)
