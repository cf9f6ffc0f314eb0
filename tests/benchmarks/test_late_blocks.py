"""Suspects of late blocks: against tokens of which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.late_blocks import (
    READ_POINTS,
    Read,
    Scenes,
    by_position,
    centred,
    class_likeness,
    discovered,
    effective_rank,
    interventions,
    mean_cosine,
    offset,
    same_cut,
    sink,
    suspects,
    without_first_component,
    without_position,
)

RNG = torch.Generator().manual_seed(0)


def test_suspects_of_tokens_that_are_alike_and_of_orthogonal_ones() -> None:
    alike, apart = torch.ones(2, 9, 16), torch.eye(16)[None, :9].repeat(2, 1, 1)
    assert (mean_cosine(alike), offset(alike)) == pytest.approx((1.0, 1.0))
    assert mean_cosine(apart) == pytest.approx(0.0, abs=1e-6)
    assert offset(apart) == pytest.approx(1 / 3)  # the mean of 9 orthogonal units has length 1 / 3
    assert effective_rank(apart) == pytest.approx(8.0)  # centred: one less
    assert class_likeness(alike, torch.ones(2, 16)) == pytest.approx(1.0)


def test_an_offset_is_removed() -> None:
    tokens = torch.randn(3, 9, 16, generator=RNG) + 20
    assert mean_cosine(tokens) > 0.95
    assert abs(mean_cosine(centred(tokens))) < 0.2
    assert abs(mean_cosine(without_first_component(tokens))) < 0.2


def reading(key: torch.Tensor) -> Read:
    tokens = {name: {1: key} for name in READ_POINTS}
    cls = {name: {1: torch.zeros(len(key), key.shape[2])} for name in READ_POINTS}
    return Read(tokens, cls, (3, 3), heads=2, patch=8)


def test_keys_of_their_place_cut_every_image_alike_until_it_is_removed() -> None:
    columns = torch.arange(9) % 3
    place = torch.nn.functional.one_hot((columns == 2).long(), 16).float() * 4
    objects = torch.nn.functional.one_hot(torch.tensor([[2], [5], [7]]).expand(3, 9), 16).float() * 0.0
    for image, rows in enumerate(([0, 1], [3, 4], [6, 7])):
        objects[image, rows, 8] = 1.0
    tokens = place + objects
    assert by_position(place.expand(3, -1, -1), (3, 3)) == pytest.approx(100.0)
    assert by_position(tokens, (3, 3)) > 90
    assert same_cut(tokens, (3, 3)) > same_cut(without_position(tokens), (3, 3))
    assert by_position(without_position(tokens), (3, 3)) == pytest.approx(0.0, abs=1e-4)


def test_a_sink_draws_all_attention() -> None:
    even = reading(torch.zeros(2, 9, 16))
    assert sink(even, 1) == pytest.approx(1.0)
    key = torch.zeros(2, 9, 16)
    key[:, 4] = 100.0
    drawn = reading(key)
    drawn.tokens["query"] = {1: torch.ones(2, 9, 16)}
    drawn.cls["query"] = {1: torch.ones(2, 16)}
    assert sink(drawn, 1) == pytest.approx(10.0)  # all of 10 tokens look at one


def test_centring_finds_what_an_offset_hides() -> None:
    """An object of one cell whose keys differ by less than the offset: complete at tau 0.2, found when centred."""
    key = torch.randn(2, 9, 16, generator=RNG) * 0.05
    key[:, 0, :8] += 1.0
    key[:, 0, 8:] -= 1.0
    found = reading(key + 4 * torch.cat([torch.ones(8), -torch.ones(8)]))
    data = Scenes([], [np.array([[0.0, 0.0, 8.0, 8.0]])] * 2, 24)
    hits, complete = discovered(found.tokens["key"][1], found, data)
    assert complete == 100.0
    assert discovered(centred(found.tokens["key"][1]), found, data)[0] == 100.0
    changed = interventions(found, data, 1)
    assert changed["as it is"] == hits
    assert changed["centred"] == 100.0
    assert {f"read at {name}" for name in READ_POINTS[1:]} < set(changed)
    assert suspects(found, data, 1)["complete graphs, %"] == 100.0
