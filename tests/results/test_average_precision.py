"""AP from records of images: without each image, in ties, in files, and compared over images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit, stdtrit

from dinoskip.decisions.cross_fitting import cross_fitted_best
from dinoskip.errors import DataError
from dinoskip.results.average_precision import (
    MatchedDetections,
    average_precision,
    average_precision_splits,
    bias_of_halves,
    matched_detections,
    mean_average_precision,
    mixed,
    problem_of,
    weighted_average_precision,
    without_each,
)
from dinoskip.results.estimates import difference, estimate
from dinoskip.results.records import ImageRecords, read_records, write_records
from dinoskip.results.rows import EvalResult, write_rows
from dinoskip.results.statistics import are_hits, interval, jackknife, score

OVERLAPS = np.linspace(0.5, 0.95, 10)[:, None]


def detections(images: int, classes: int = 1, seed: int = 0, *, ties: bool = False) -> MatchedDetections:
    """One to three objects an image, each found in three of four images, and as many that are none."""
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 4, images)
    where = np.repeat(np.arange(images), count)
    kind = rng.integers(0, classes, len(where))
    objects = np.zeros((images, classes), dtype=np.int64)
    np.add.at(objects, (where, kind), 1)
    good = rng.normal(0, 1, images)[where] + rng.normal(0, 1, len(where))
    found = rng.random(len(where)) < 0.75
    hits = np.concatenate([0.7 + 0.15 * good, np.zeros(len(where))]) >= OVERLAPS
    scores = np.round(np.concatenate([good + 1, rng.normal(0, 1, len(where))]), 5)
    some = np.flatnonzero(np.concatenate([found, np.ones(len(where), dtype=np.bool_)]))
    some = some[np.argsort(rng.random(len(some)))]
    twice, kinds = np.concatenate([where, where]), np.concatenate([kind, rng.integers(0, classes, len(where))])
    return matched_detections(
        twice[some], np.zeros(len(some)) if ties else scores[some], kinds[some], hits[:, some],
        np.zeros((10, len(some)), dtype=np.bool_), objects,
    )  # fmt: skip


def test_ap_by_hand() -> None:
    """Two images, three objects; hit, miss, hit, (ignored), miss: recall 1/3 at precision 1, 2/3 at 2/3."""
    hits = np.array([[True, False, True, True, False]])
    ignored = np.array([[False, False, False, True, False]])
    records = matched_detections(
        [0, 0, 1, 1, 1], [0.9, 0.8, 0.7, 0.75, 0.1], [0] * 5, hits, ignored, np.array([[1], [2]])
    )
    assert mean_average_precision(records) == pytest.approx((34 * 1 + 33 * 2 / 3) / 101)
    assert mean_average_precision(records[[0]]) == 1.0
    assert mean_average_precision(records[[1]]) == pytest.approx(51 / 101)
    assert records.shape == (2, 1, 0, 1)
    assert not are_hits(records)


def test_a_recall_that_pycocotools_rounds_up_is_not_reached() -> None:
    """57 of 100 objects: 57 / 100 is below the recall 0.5700000000000001, so 57 points of 101 have a precision."""
    hits = np.ones((1, 57), dtype=np.bool_)
    records = matched_detections([0] * 57, np.zeros(57), [0] * 57, hits, ~hits, np.array([[100]]))
    assert np.linspace(0, 1, 101)[57] > 57 / 100
    assert mean_average_precision(records) == pytest.approx(57 / 101)


def brute(records: MatchedDetections) -> np.ndarray:
    """AP (n,) without each image, classes of the whole set held."""
    whole = average_precision(records).mean(0)
    each = [average_precision(records[np.delete(np.arange(len(records)), i)]).mean(0) for i in range(len(records))]
    return np.array([np.nanmean(np.where(np.isnan(one), whole, one)) for one in each])


@pytest.mark.parametrize("classes", [1, 4])
def test_parts_are_those_of_counting_anew_without_each_image(classes: int) -> None:
    records = detections(120, classes, seed=classes).at(0, 2)
    parts = without_each(records).parts
    assert parts.shape == (120, classes)
    anew = 119 * (mean_average_precision(records) - brute(records))
    assert np.corrcoef(parts.sum(1), anew)[0, 1] > 0.97
    assert parts.sum(1).std() == pytest.approx(anew.std(), rel=0.1)


def test_the_error_is_the_spread_of_other_images() -> None:
    values, errors = [], []
    for seed in range(150):
        records = detections(50, 2, seed=seed).at(0, 2)
        values.append(score(records))
        errors.append(estimate(records).standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_an_image_that_has_all_of_a_class_has_no_part_in_it() -> None:
    records = detections(30, 2, seed=3)
    objects = records.objects.copy()
    objects[1:, 1] = 0
    objects[0, 1] = 2
    kept = np.where((records.classes == 1) & (records.images > 0), 0, records.hits)
    lone = jackknife(replace(records, objects=objects, hits=kept))
    assert lone.lone.tolist() == [False, True]
    assert lone.sizes[1] == 1
    assert lone.parts[0, 1] == 0
    assert np.abs(lone.parts[1:, 1]).sum() >= 0


def test_equal_scores_have_one_rank_in_the_interval_and_the_order_of_images_in_the_value() -> None:
    records = detections(40, ties=True)
    rank = np.random.default_rng(0).permutation(40)
    turned = replace(records[rank], order=np.arange(40))
    assert mean_average_precision(records[rank]) == mean_average_precision(records)
    assert mean_average_precision(turned) != mean_average_precision(records)
    one, other = (without_each(part, tied=True) for part in (records, turned))
    assert one.value == pytest.approx(other.value, abs=1e-12)
    np.testing.assert_allclose(one.parts[rank], other.parts, atol=1e-9)
    hits = (records.hits & 1).sum()
    once = records.at(0, 1)
    share = hits / records.objects.sum()
    assert without_each(once, tied=True).value == pytest.approx(hits / len(records.hits) * share, abs=0.01)
    assert mean_average_precision(once) > without_each(once, tied=True).value
    low, high = interval(once)
    assert low < mean_average_precision(once) < high


def test_weights_are_images_drawn_again() -> None:
    records = detections(20, 3)
    times = np.random.default_rng(0).multinomial(20, [1 / 20] * 20, size=5).astype(np.float64)
    for row, value in zip(times, weighted_average_precision(records, times), strict=True):
        drawn = np.repeat(np.arange(20), row.astype(int))
        assert value == pytest.approx(mean_average_precision(records[drawn]), abs=1e-12)


def test_few_images_of_a_class_overstate_ap_and_too_few_have_no_interval() -> None:
    rng = np.random.default_rng(0)
    halves = [rng.permutation(40) < 20 for _ in range(20)]
    assert bias_of_halves(detections(40, 12), halves, tied=True) > 0
    assert np.isnan(interval(detections(6, 12))).all()
    low, high = interval(detections(200, 12))
    assert 0 < low < score(detections(200, 12)) < high < 1
    assert np.isnan(interval(detections(1))).all()


def test_nothing_found_has_the_interval_of_no_hit() -> None:
    records = detections(60)
    low, high = interval(replace(records, hits=np.zeros_like(records.hits)))
    assert (low, round(high, 3)) == (0, 0.06)


def test_rows_of_the_same_detections_share_them_in_the_file(tmp_path: Path) -> None:
    rows = [EvalResult(name, 1.0, "detection", "1", "coco", "val", 7) for name in ("AP", "CorLoc", "AP50", "AP75")]
    write_rows(tmp_path / "rows.json", rows)
    made, other = detections(7, 3), detections(7, 3, seed=1, ties=True)
    made = replace(made, scores=0.5 + 1e-6 * np.arange(len(made.scores)))  # float16 would make them equal
    ids = list("gfedcba")
    kept = {0: made, 2: made.at(0, 1), 3: other, 1: np.array([1, 0, 1, 0, 1, 0, 1])}
    write_records(tmp_path / "records.npz", ids, kept)
    first = (tmp_path / "records.npz").read_bytes()
    write_records(tmp_path / "records.npz", ids, dict(reversed(kept.items())))
    assert (tmp_path / "records.npz").read_bytes() == first
    stored = np.load(tmp_path / "records.npz")
    assert sorted(name for name in stored if name.endswith("hits")) == ["detections0_hits", "detections1_hits"]
    assert stored["detections0_scores"].dtype == np.float32
    assert stored["detections1_scores"].dtype == np.float16
    assert stored["detections0_hits"].dtype == np.uint16
    assert stored["detections0_objects"].dtype == np.uint8
    read = read_records(tmp_path)
    assert list(read) == rows
    for number, row in enumerate(rows):
        assert score(read[row].values) == score(kept[number])
    assert read[rows[2]].values.shape == (7, 3, 0, 1)
    assert score(read[rows[0]].of(sorted(ids))) == score(made)
    np.testing.assert_array_equal(jackknife(read[rows[0]].of(sorted(ids))).parts, jackknife(made).parts[::-1])


def damaged(made: MatchedDetections, what: str) -> MatchedDetections:
    changed: dict[str, Any] = {
        "lengths": {"scores": made.scores[:-1]},
        "offsets": {"offsets": made.offsets[::-1]},
        "classes": {"classes": made.classes + 3},
        "scores": {"scores": np.full_like(made.scores, np.nan)},
        "flags": {"ignored": made.hits},
        "hits": {"hits": np.full_like(made.hits, 1023)},
        "bits": {"ignored": np.full(len(made.hits), 1 << 16)},
        "type": {"hits": made.hits.astype(np.float64)},
        "dimensions": {"classes": made.classes[:, None]},
    }
    return replace(made, **changed[what])


@pytest.mark.parametrize(
    "what", ["lengths", "offsets", "classes", "scores", "flags", "hits", "bits", "type", "dimensions"]
)
def test_unsound_detections_are_neither_written_nor_read(what: str, tmp_path: Path) -> None:
    made = detections(5, 3)
    assert not problem_of(made)
    bad = damaged(made, what)
    assert problem_of(bad)
    with pytest.raises(ValueError, match="do not fit 5 images"):
        write_records(tmp_path / "records.npz", list("abcde"), {0: bad})
    write_rows(tmp_path / "rows.json", [EvalResult("AP", 1.0, "detection", "1", "coco", "val", 5)])
    names = ("offsets", "scores", "classes", "hits", "ignored", "objects")
    arrays = {f"detections0_{name}": getattr(bad, name) for name in names}
    np.savez(tmp_path / "records.npz", ids=np.array(list("abcde")), detections=np.array([[0, 0, 0, 10]]), **arrays)
    with pytest.raises(DataError, match="cannot be read as per-image records"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([[0, 0, 0, 17]], "cannot be read"), ([[0, 1, 0, 10]], "cannot be read"), ([[0, 0, 10]], "cannot be read"),
        ([[0, 0, 5, 5]], "cannot be read"), ([[1, 0, 0, 10]], "does not belong"), ([[-1, 0, 0, 10]], "does not belong"),
    ],
)  # fmt: skip
def test_an_index_of_other_rows_is_damage(index: list[list[int]], message: str, tmp_path: Path) -> None:
    made = detections(5, 3)
    write_rows(tmp_path / "rows.json", [EvalResult("AP", 1.0, "detection", "1", "coco", "val", 5)])
    names = ("offsets", "scores", "classes", "hits", "ignored", "objects")
    arrays = {f"detections0_{name}": getattr(made, name) for name in names}
    np.savez(tmp_path / "records.npz", ids=np.array(list("abcde")), detections=np.array(index), **arrays)
    with pytest.raises(DataError, match=message):
        read_records(tmp_path)


def test_images_in_another_order_than_that_of_ties_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another order"):
        write_records(tmp_path / "records.npz", ["a", "b", "c"], {0: detections(3)[[2, 1, 0]]})
    with pytest.raises(ValueError, match="do not fit 2 images"):
        write_records(tmp_path / "records.npz", ["a", "b"], {0: detections(3)})


def test_differences_are_paired_over_images() -> None:
    """The same detections but for a tenth of the hits: far more exact than two intervals apart."""
    first = detections(200, 3)
    lost = np.random.default_rng(0).random(len(first.hits)) < 0.1
    second = replace(first, hits=np.where(lost, 0, first.hits))
    apart = difference([estimate(first)], [estimate(second)])
    assert apart.paired
    assert apart.n == 200
    assert 0 < apart.low < score(first) - score(second) < apart.high
    low, high = interval(first)
    assert apart.high - apart.low < 0.7 * (high - low)
    with pytest.raises(ValueError, match="cannot be paired"):
        estimate([first, second.at(0, 1)])


def better(records: MatchedDetections, by: int) -> MatchedDetections:
    """The same with hits at ``by`` overlaps fewer."""
    return replace(records, hits=records.hits >> by)


def test_the_best_block_is_chosen_by_cross_fitting() -> None:
    blocks = {"1": better(detections(40, 2), 2), "2": detections(40, 2), "3": better(detections(40, 2), 1)}
    choice = cross_fitted_best(blocks)
    assert choice.blocks == {"2": 1.0}
    assert choice.estimate.value == pytest.approx(score(blocks["2"]))
    np.testing.assert_allclose(choice.estimate.parts, jackknife(blocks["2"]).parts, atol=1e-9)
    assert (choice.oracle_block, choice.oracle) == ("2", score(blocks["2"]))
    assert next(iter(cross_fitted_best(blocks, lowest=True).blocks)) == "1"


def test_equal_blocks_are_not_overstated() -> None:
    lead, oracle = [], []
    for seed in range(6):
        blocks = {str(number): detections(40, seed=100 * seed + number).at(0, 1) for number in range(4)}
        choice = cross_fitted_best(blocks)
        mean = np.mean([score(block) for block in blocks.values()])
        lead.append(choice.estimate.value - mean)
        oracle.append(choice.oracle - mean)
        assert len(choice.blocks) > 1
        assert choice.estimate.standard_error > 0
    assert abs(np.mean(lead)) < 0.6 * np.mean(oracle)


def test_records_are_looked_up_by_id() -> None:
    made = ImageRecords(("a", "b", "c"), detections(3))
    assert made.of(["a", "b", "c"]) is made.values
    chosen = made.of(["c", "a"])
    assert isinstance(chosen, MatchedDetections)
    assert chosen.order.tolist() == [2, 0]
    with pytest.raises(KeyError):
        made.of(["d"])


def plain_interval(value: float, error: float, n: int) -> tuple[float, float]:
    """Student's on the logit scale."""
    half = float(stdtrit(n - 1, 0.975)) * error / (value * (1 - value))
    return float(expit(logit(value) - half)), float(expit(logit(value) + half))


def test_the_interval_reaches_down_to_ap_without_the_bias_of_few_images() -> None:
    records = detections(40, 6)
    low, high = interval(records)
    plain = plain_interval(score(records), estimate(records).standard_error, 40)
    assert low < plain[0] - 0.003
    assert high == pytest.approx(plain[1], abs=0.01)


def test_the_interval_of_equal_scores_is_around_ap_with_one_rank() -> None:
    records = detections(40, ties=True).at(0, 1)
    _, high = interval(records)
    assert high < plain_interval(score(records), estimate(records).standard_error, 40)[1] - 0.005


def test_without_an_image_another_block_may_be_chosen() -> None:
    """One of two nearly equal blocks is chosen, and the other half is then scored at the other one."""
    blocks = [detections(30, seed=number).at(0, 1) for number in (3, 4)]
    rng = np.random.default_rng(0)
    halves = [rng.permutation(30) < 15 for _ in range(20)]
    switched = 0
    for first, (value, _, changes, chosen) in zip(halves, average_precision_splits(blocks, halves, 1.0), strict=True):
        assert value == mean_average_precision(mixed(blocks[chosen[0]], blocks[chosen[1]], first))
        for side, units in enumerate((first, ~first)):
            assert score(blocks[chosen[1 - side]][units]) >= score(blocks[1 - chosen[1 - side]][units]) - 1e-12
            other = mixed(blocks[chosen[side]], blocks[1 - chosen[1 - side]], units)
            moved = changes[units][changes[units] != 0]
            assert moved == pytest.approx(np.full(len(moved), score(other) - value))
            switched += len(moved)
    assert switched > 0
