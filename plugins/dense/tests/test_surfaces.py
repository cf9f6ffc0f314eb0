"""Tests of the evaluation that depth and normals share; the whole is tested with each of them."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dinoskip.errors import DataError
from dinoskip.results.rows import EvalResult
from dinoskip_dense.surfaces import ChosenHeads, Measures, ScoredHeads, baseline_images, lowest_trials, split_images
from eval.probe.stack import HeadStack


def test_rules_are_made_of_images_spread_evenly() -> None:
    assert baseline_images(3) == [0, 1, 2]
    many = baseline_images(5000)
    assert (len(many), many[0], many[-1]) == (1000, 0, 4999)
    assert {b - a for a, b in pairwise(many)} <= {5, 6}


def test_a_split_without_images_is_named() -> None:
    splits = (("train", tuple("abcd")), ("val", ()))
    sets = [SimpleNamespace(name="rooms", split=split, ids=ids) for split, ids in splits]
    with pytest.raises(DataError, match="rooms: no image in val"):
        split_images(*sets, 0.5, 0)
    fitted, held = split_images(sets[0], sets[0], 0.25, 0)
    assert (len(fitted), len(held)) == (3, 1)


def test_rates_are_chosen_on_held_out_images_though_the_scored_ones_prefer_another() -> None:
    stack = HeadStack([(("patches", 3),)], [1e-3, 1e-2], 1, 2, 0.0, torch.device("cpu"))
    heldout = np.array([[[[1.0, 0.9]], [[2.0, 0.4]]]])  # (1 group, 2 rates, 1 image, 2 measures): the first rate
    scored = ScoredHeads(np.array([[[[4.0, 0.3]], [[3.0, 0.5]]]]), np.zeros((1, 2, 0), np.float16))  # the second
    heads = ChosenHeads(Measures("depth", ("RMSE", "d1"), "RMSE", "d1"), stack, heldout, scored)
    context = EvalResult("", 0.0, "depth", "", "rooms", "val", 1, facet="out", norm="none", seed=0, protocol="p")
    rows = [recorded.row for recorded in heads.rows(context)]
    assert heads.chosen == [0]
    assert [(row.metric, row.note, row.value) for row in rows] == [
        ("RMSE", "", 4.0), ("d1", "", 30.0), ("RMSE", "best on validation", 3.0), ("d1", "best on validation", 50.0),
    ]  # fmt: skip
    assert rows[1].heldout == 90.0
    assert [row.selected for row in rows] == ["held out", "held out", "shown", "shown"]
    alone = ChosenHeads(heads.measures, stack, None, scored)
    assert alone.chosen == [1]
    assert {recorded.row.note for recorded in alone.rows(context)} == {"best on validation"}
    assert {recorded.row.selected for recorded in alone.rows(context)} == {"shown"}
    stack = HeadStack([(("patches", 3),)], [1e-3], 1, 2, 0.0, torch.device("cpu"))
    one = ScoredHeads(scored.scores[:, :1], np.zeros((1, 1, 0), np.float16))
    for held in (heldout[:, :1], None):
        single = ChosenHeads(heads.measures, stack, held, one).rows(context)
        assert [recorded.row.selected for recorded in single] == ["fixed", "fixed"], "of one rate nothing is chosen"


def test_the_trial_of_the_lowest_error_is_taken_and_diverged_ones_are_not() -> None:
    errors = np.array([[[np.nan, np.nan], [0.5, 0.7], [0.6, np.nan]], [[0.1, 0.1], [0.1, 0.1], [0.0, 0.3]]])
    assert lowest_trials(errors, ["1", "2"], "depth") == [1, 0]
    with pytest.raises(DataError, match="depth: block 7: no head has a score"):
        lowest_trials(np.full((1, 2, 3), np.nan), ["7"], "depth")
