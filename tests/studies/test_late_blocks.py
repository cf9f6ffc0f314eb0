"""Suspects of late blocks: against tokens of which the answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from dinoskip.models.rank_collapse import token_cosine
from studies import late_blocks_page
from studies.late_blocks import (
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
        (False, True, "with the learning rate, not"),
        (False, False, "at neither"),
        (True, True, "with neither skips"),
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


def with_cells(
    rows: list[dict[str, str]], network: str, measure: str | None, value: str, blocks: range = late_blocks_page.BLOCKS
) -> list[dict[str, str]]:
    """Rows of which those of a network and a measure (None: all) have one value in these blocks."""
    return [
        {**row, **{str(block): value for block in blocks}}
        if row["run"].startswith(f"{network}_") and measure in (row["measure"], None)
        else row
        for row in rows
    ]


def test_the_conclusion_turns_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    rows = late_blocks_page.read_all()
    said = late_blocks_page.conclusion(rows, [])
    assert " closes this gap" in said
    assert "alone does not" in said
    still = late_blocks_page.conclusion(with_cells(rows, "skip", late_blocks_page.WITHOUT, "5"), [])
    assert "does not close this gap" in still
    offset = late_blocks_page.conclusion(with_cells(rows, "skip", late_blocks_page.CENTRED, "60"), [])
    assert "closes it too" in offset
    assert "does not lead" in late_blocks_page.conclusion(with_cells(rows, "mixing", None, "1"), [])


def test_what_is_left_unexplained_turns_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    page = late_blocks_page
    rows, epochs = page.read_all(), page.read_csv(page.EPOCHS)
    said = page.conclusion(rows, epochs)
    assert "in block 12 (" in said
    assert "leads in 12 of 12 blocks" in said
    assert "is not told by its share" in said
    assert "leads in no block" in page.conclusion(with_cells(rows, "mixing", page.WITHOUT, "9"), epochs)
    assert "leads in 0 of 12 blocks" in page.conclusion(with_cells(rows, "mixing", page.OUT, "1"), epochs)
    alike = page.conclusion(with_cells(rows, "annealed", page.AS_IS, "70"), epochs)
    assert "is not told by its share" not in alike


def test_other_networks_fall_for_what_their_rows_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    page = late_blocks_page
    rows = page.read_all()
    said = page.conclusion(rows, [])
    assert "*paper init* falls in 5 of 5 seeds, for another reason" in said
    assert "*annealed* falls in 0 of 5 seeds, but loses to position too" in said
    assert "for another reason" not in page.conclusion(with_cells(rows, "paper", page.CENTRED, "2"), [])
    assert "loses to position too" not in page.conclusion(with_cells(rows, "annealed", page.WITHOUT, "40"), [])


def test_the_number_of_seeds_that_decides_is_that_of_an_exact_test() -> None:
    exact = [stats.fisher_exact([[n, 0], [0, n]]).pvalue for n in (2, 3, 4)]
    assert [late_blocks_page.smallest_p(n) for n in (2, 3, 4)] == pytest.approx(exact)
    assert late_blocks_page.VERDICT_SEEDS == 4


def test_each_seed_is_shown_with_what_decides_whether_it_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    rows = late_blocks_page.read_all()
    table = late_blocks_page.by_seed(rows, exchanged_rows(True, False, 2))
    assert "| skip at 0.0027 | 1 | 60.0 | 5.0 | yes |" in table
    assert "| mixing at 0.024 | 0 | 60.0 | 60.0 | no |" in table
    assert sum(line.startswith("| skip at its own") for line in table) == 5


def test_a_suspect_is_ruled_out_by_its_largest_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    rows = late_blocks_page.read_all()
    word = {line.split(" | ")[0]: line.split(" | ")[-1] for line in late_blocks_page.suspects(rows)}
    name = "| τ 0.7 in place of 0.2"
    assert word[name] == "not ruled out |"
    lower = with_cells(rows, "skip", "CorLoc, τ 0.7", "30", late_blocks_page.FALL)
    assert f"{name} | 30, 30, 30 | 30.0 | ruled out |" in late_blocks_page.suspects(lower)
