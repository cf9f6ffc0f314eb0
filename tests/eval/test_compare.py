"""Two results compared over the same images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinoskip.decisions.cross_fitting import cross_fitted_best
from dinoskip.errors import ConfigError, DataError
from dinoskip.results.estimates import difference, estimate
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult, write_rows
from eval.compare import compare
from eval.rows import hits_row
from tests.helpers.an_error import METRIC, distance_is_a_task

__all__ = ["distance_is_a_task"]

IDS = tuple(f"image{i}" for i in range(40))
CORLOC = EvalResult("CorLoc", 0.0, "tokencut", "", "voc", "trainval", 40, "net", epoch=3, protocol="tokencut tau=0.2")


def hits(seed: int, part: float) -> np.ndarray:
    return np.random.default_rng(seed).random(40) < part


def written(folder: Path, recorded: list[RecordedRow], ids: tuple[str, ...] = IDS) -> str:
    folder.mkdir(parents=True)
    write_recorded_rows(folder, ids, recorded)
    return str(folder)


def blocks(model: str, parts: dict[str, float]) -> list[RecordedRow]:
    recorded = [
        hits_row(replace(CORLOC, model=model, block=block), hits(sum(map(ord, model + block)), part))
        for block, part in parts.items()
    ]
    return [*recorded, hits_row(recorded[0].row.baseline("full image", 0.0), hits(9, 0.2))]


def test_named_rows_are_paired_by_the_ids_of_their_images(tmp_path: Path) -> None:
    ours, theirs = blocks("skipless", {"1": 0.9, "2": 0.4}), blocks("skip", {"1": 0.5, "2": 0.5})
    a = written(tmp_path / "a", ours)
    turned = [replace(one, values=one.values[::-1]) for one in theirs if one.values is not None]
    b = written(tmp_path / "b", turned, IDS[::-1])
    found = compare(f"{a}@block=1", f"{b}/rows.json@block=2")
    assert ours[0].values is not None
    assert theirs[1].values is not None
    wanted = difference([estimate(ours[0].values)], [estimate(theirs[1].values)])
    assert found.difference.value == pytest.approx(100 * wanted.value)
    assert (found.difference.low, found.difference.high) == pytest.approx((100 * wanted.low, 100 * wanted.high))
    assert found.difference.value == pytest.approx(ours[0].row.value - theirs[1].row.value)
    assert found.mcnemar is not None
    assert found.mcnemar.only_a - found.mcnemar.only_b == pytest.approx(0.4 * found.difference.value)
    assert found.text.startswith(
        "CorLoc on voc trainval, 40 images: skipless epoch 3 block 1 - skip epoch 3 block 2 = +"
    )
    floor = compare(f"{a}@block=1", f"{a}@model=baseline: full image").b
    assert floor.row.is_baseline
    assert floor.name == "baseline: full image"


def test_a_block_is_chosen_by_cross_fitting(tmp_path: Path) -> None:
    ours = blocks("skipless", {"1": 0.3, "2": 0.9, "3": 0.4})
    a, b = written(tmp_path / "a", ours), written(tmp_path / "b", blocks("skip", {"1": 0.5}))
    found = compare(a, b)
    order = np.argsort(IDS)
    fit = cross_fitted_best({one.row.block: one.values[order] for one in ours[:3] if one.values is not None})
    assert found.a.row.value == pytest.approx(100 * fit.estimate.value)
    assert found.a.block == "2 (cross-fitted)"
    assert found.b.block == "1"


def test_of_few_images_the_last_block_is_taken(tmp_path: Path) -> None:
    few = [
        replace(one, values=one.values[:12]) for one in blocks("net", {"1": 0.9, "2": 0.2}) if one.values is not None
    ]
    a = written(tmp_path / "a", few, IDS[:12])
    assert compare(a, a).a.block == "2 (the last: too few images to choose)"
    five = written(tmp_path / "five", [replace(one, values=one.values[:5]) for one in few], IDS[:5])
    assert ", too few for a test (below 6)" in compare(f"{five}@block=1", f"{five}@block=2").text


def probe(model: str, heldout: dict[str, float]) -> list[RecordedRow]:
    rng = np.random.default_rng(0)
    union = rng.integers(1, 40, (40, 3))
    row = replace(CORLOC, metric="mIoU", task="probe", model=model, classes=3)
    return [
        RecordedRow(replace(row, block=b, heldout=h), np.stack([union * h / 100, union], -1).astype(np.int64))
        for b, h in heldout.items()
    ]


def test_a_probes_block_is_chosen_by_held_out_training_images(tmp_path: Path) -> None:
    a = written(tmp_path / "a", probe("skipless", {"1": 30.0, "2": 60.0, "3": 50.0}))
    found = compare(a, f"{a}@block=3")
    assert found.a.block == "2 (by held-out training images)"
    assert found.mcnemar is None
    assert 5 < found.difference.low < found.difference.value < found.difference.high < 15


def test_several_seeds_are_paired_by_their_mean(tmp_path: Path) -> None:
    seeds = [probe("skipless", {"1": value})[0] for value in (30.0, 40.0, 80.0)]
    mean = RecordedRow(replace(seeds[0].row, value=50.0, deviation=3.0))
    fits = [replace(one, row=replace(one.row, seed=i, note=f"seed {i}")) for i, one in enumerate(seeds)]
    a = written(tmp_path / "a", [mean, *fits])
    b = written(tmp_path / "b", probe("skip", {"1": 50.0}))
    found = compare(a, b)
    assert found.a.estimate.fits > 0
    assert abs(found.difference.value) < 2
    assert found.difference.high - found.difference.low > 20, "which seeds are drawn counts, too"


def test_blocks_of_several_seeds_are_cross_fitted_together(tmp_path: Path) -> None:
    """It was refused, while a page showed the best block on these images."""
    recorded: list[RecordedRow] = []
    fits: dict[str, list[np.ndarray]] = {}
    for block, part in (("1", 0.3), ("2", 0.8)):
        row = replace(CORLOC, model="net", block=block)
        made = [hits_row(row, hits(10 * int(block) + seed, part)) for seed in range(3)]
        fits[block] = [one.values[np.argsort(IDS)] for one in made if one.values is not None]
        mean = float(np.mean([one.row.value for one in made]))
        recorded.append(RecordedRow(replace(made[0].row, value=mean, deviation=1.0, low=None, high=None)))
        recorded += [replace(one, row=replace(one.row, seed=i, note=f"seed {i}")) for i, one in enumerate(made)]
    a, b = written(tmp_path / "a", recorded), written(tmp_path / "b", blocks("other", {"1": 0.4}))
    found = compare(a, b)
    wanted = cross_fitted_best(fits).estimate
    assert found.a.block == "2 (cross-fitted)"
    assert found.a.estimate.value == pytest.approx(wanted.value)
    assert found.a.estimate.standard_error == pytest.approx(wanted.standard_error)
    assert (found.a.score.selected, found.mcnemar, found.verdict.why) == ("cross-fitted", None, "")
    fewer = [one for one in recorded if (one.row.block, one.row.note) != ("1", "seed 2")]
    shown = compare(written(tmp_path / "c", fewer), b)
    assert shown.a.block == "2 (chosen on the images shown)"
    assert (shown.verdict.said, shown.verdict.why) == ("undecided", "chosen on the images shown: net")


def test_two_rows_are_called_higher_or_lower_and_never_better(tmp_path: Path) -> None:
    a = written(tmp_path / "a", blocks("one", {"1": 0.95}))
    b = written(tmp_path / "b", blocks("two", {"1": 0.05}))
    there, back = compare(a, b), compare(b, a)
    assert (there.verdict.said, back.verdict.said) == ("higher, one training each", "lower, one training each")
    assert there.text.endswith("; higher, one training each")
    assert compare(a, a).verdict.said == "undecided"


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    rows = blocks("skip", {"1": 0.5, "2": 0.5})
    a = written(tmp_path / "x" / "a", rows)
    other = written(tmp_path / "other", [replace(one, row=replace(one.row, dataset="coco")) for one in rows])
    fewer = written(tmp_path / "fewer", rows, tuple(f"new{i}" for i in range(40)))
    b = written(tmp_path / "x" / "b", [replace(one, row=replace(one.row, protocol="lost k=100")) for one in rows])
    both = written(tmp_path / "both", [*rows, *(replace(one, row=replace(one.row, protocol="p")) for one in rows)])
    assert compare(f"{a}@block=1", f"{b}@block=1").differs == ("protocol",)
    for text, message in (
        (f"{other}@block=1", "cannot be compared: dataset 'voc' and 'coco'"),
        (f"{fewer}@block=1", "not of the same images: 0 of 40 in common"),
        (f"{a}@block=9", "no row with records has block=9"),
        (f"{a}@blok=1", "did you mean block"),
        (f"{a}@block", "key=value"),
        (both, "4 rows differ in protocol"),
        (str(tmp_path / "x"), "4 rows differ in protocol"),
        (str(tmp_path / "nothing"), "holds no rows.json"),
    ):
        with pytest.raises((ConfigError, DataError)) as failure:
            compare(f"{a}@block=1", text)
        assert message in str(failure.value) + str(failure.value.hint), text
    named = replace(rows[0], row=replace(rows[0].row, protocol="paper, 3 epochs"))
    c = written(tmp_path / "c", [named, rows[0]])
    assert compare(f"{c}@protocol=paper, 3 epochs,block=1", f"{a}@block=1").a.row == named.row
    (tmp_path / "old").mkdir()
    write_rows(tmp_path / "old" / "rows.json", [rows[0].row])
    with pytest.raises(DataError, match="has no per-image records"):
        compare(str(tmp_path / "old"), a)


def test_errors_of_images_are_compared_in_their_unit_at_the_block_of_the_lowest(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    like = EvalResult(METRIC, 0.0, "distance", "", "nyu", "test", 40, "net")

    def recorded(model: str, errors: dict[str, float]) -> list[RecordedRow]:
        each = {block: error + 0.01 * rng.standard_normal(40) for block, error in errors.items()}
        return [
            RecordedRow(replace(like, model=model, block=block, value=float(own.mean())), own / 100)
            for block, own in each.items()
        ]

    a = written(tmp_path / "a", recorded("one", {"1": 0.9, "2": 0.5}))
    b = written(tmp_path / "b", recorded("two", {"1": 0.6, "2": 0.8}))
    result = compare(a, b)
    assert (result.a.block, result.b.block) == ("2 (cross-fitted)", "1 (cross-fitted)")
    assert result.difference.value == pytest.approx(-0.1, abs=0.01)
    assert result.mcnemar is None
    assert f"= {result.difference.value:+.3f} [" in result.text
