"""Suspects of late blocks: against tokens of which the answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import late_blocks_page
from benchmarks.late_blocks import (
    READ_POINTS,
    Read,
    Scenes,
    by_position,
    centred,
    class_likeness,
    corloc,
    cut,
    measures,
    offset,
    same_cut,
    sink,
    without_first_component,
    without_position,
)
from dinoskip.rank_collapse import token_cosine

RNG = torch.Generator().manual_seed(0)


def test_suspects_of_tokens_that_are_alike_and_of_orthogonal_ones() -> None:
    alike, apart = torch.ones(2, 9, 16), torch.eye(16)[None, :9].repeat(2, 1, 1)
    assert (token_cosine(alike), offset(alike)) == pytest.approx((1.0, 1.0))
    assert token_cosine(apart) == pytest.approx(0.0, abs=1e-6)
    assert offset(apart) == pytest.approx(1 / 3)  # the mean of 9 orthogonal units has length 1 / 3
    assert class_likeness(alike, torch.ones(2, 16)) == pytest.approx(1.0)


def test_an_offset_is_removed() -> None:
    tokens = torch.randn(3, 9, 16, generator=RNG) + 20
    assert token_cosine(tokens) > 0.95
    assert abs(token_cosine(centred(tokens))) < 0.2
    assert abs(token_cosine(without_first_component(tokens))) < 0.2


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
    assert same_cut(cut(tokens, (3, 3))) > same_cut(cut(without_position(tokens), (3, 3)))
    assert by_position(without_position(tokens), (3, 3)) == pytest.approx(0.0, abs=1e-4)


def test_images_without_a_cut_agree_with_none() -> None:
    columns = torch.arange(9) % 3
    place = torch.nn.functional.one_hot((columns == 2).long(), 16).float()
    alike = torch.ones(1, 9, 16)
    cuts = cut(torch.cat([place[None], place[None], alike]), (3, 3))
    assert cuts.is_cut.tolist() == [True, True, False]
    assert same_cut(cuts) == pytest.approx(1.0)
    assert np.isnan(same_cut(cut(alike, (3, 3))))
    everywhere = Scenes([], [np.array([[0.0, 0.0, 24.0, 24.0]])], 24)
    assert corloc(cut(alike, (3, 3)), 8, everywhere) == 0.0, "no box is a miss"


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
    measured = measures(found, data, 1)
    assert measured["complete graphs, %"] == 100.0
    assert measured["CorLoc, as it is"] == corloc(cut(found.tokens["key"][1], (3, 3)), 8, data)
    assert measured["CorLoc, centred"] == 100.0
    assert {f"CorLoc, read at {name}" for name in READ_POINTS[1:]} < set(measured)


def test_the_page_is_what_its_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is needed: the committed page is made again from the committed rows."""
    monkeypatch.chdir(Path(__file__).parents[2])
    assert late_blocks_page.committed_page() == late_blocks_page.PAGE.read_text(encoding="utf-8")


def test_a_run_measured_again_takes_the_place_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_blocks_page, "ROWS", tmp_path / "rows.csv")

    def rows(run: str, value: float) -> list[dict[str, str]]:
        cells = {str(block): f"{value:.2f}" for block in late_blocks_page.BLOCKS}
        return [{"run": run, "weights": "w", "measure": "sink", **cells}]

    for run, value in (("paper_s0", 1.0), ("skip_s1", 2.0), ("skip_s0", 3.0), ("skip_s1", 4.0)):
        late_blocks_page.add_rows(run, rows(run, value))
    read = late_blocks_page.read_all()
    assert [row["run"] for row in read] == ["skip_s0", "skip_s1", "paper_s0"]
    assert late_blocks_page.span(read, "skip", "sink") == "3-4"
    assert late_blocks_page.seeds(read) == {"skip": ["0", "1"], "mixing": [], "annealed": [], "paper": ["0"]}


def exchanged_rows(skip_falls: bool, mixing_falls: bool, seeds: int) -> list[dict[str, str]]:
    """Rows of the last epoch of both networks at each other's rate, in which CorLoc falls in late blocks or stays."""
    rows = []
    for network, rate, fall in (("skip", "0.0027", skip_falls), ("mixing", "0.024", mixing_falls)):
        for seed in range(seeds):
            cells = {str(block): "5" if fall and block > 7 else "60" for block in late_blocks_page.BLOCKS}
            about = {"network": network, "rate": rate, "seed": str(seed), "epoch": "6"}
            rows.append({**about, "measure": late_blocks_page.AS_IS, **cells})
    return rows


@pytest.mark.parametrize(
    ("skip_falls", "mixing_falls", "said"),
    [
        (True, False, "with the skips"),
        (False, True, "with the rate"),
        (False, False, "needs both"),
        (True, True, "neither"),
    ],
)
def test_exchanged_rates_tell_skips_from_rate(
    monkeypatch: pytest.MonkeyPatch, skip_falls: bool, mixing_falls: bool, said: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    rows = late_blocks_page.read_all()
    two = late_blocks_page.conclusion(rows, exchanged_rows(skip_falls, mixing_falls, 2))
    assert said in two
    assert "do not decide" in two
    assert "do not decide" not in late_blocks_page.conclusion(rows, exchanged_rows(skip_falls, mixing_falls, 4))
    assert "is open" in late_blocks_page.conclusion(rows, [])


def test_the_conclusion_turns_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    rows = late_blocks_page.read_all()
    assert "not because they tell objects better" in late_blocks_page.conclusion(rows, [])
    removed = late_blocks_page.WITHOUT
    better = [
        {**row, **{str(block): "5" for block in late_blocks_page.BLOCKS}}
        if row["measure"] == removed and row["run"].startswith("skip")
        else row
        for row in rows
    ]
    assert "not because they tell objects better" not in late_blocks_page.conclusion(better, [])
    assert "does not lead" in late_blocks_page.conclusion(
        [
            {**row, **{str(block): "1" for block in late_blocks_page.BLOCKS}}
            if row["run"].startswith("mixing")
            else row
            for row in rows
        ],
        [],
    )
