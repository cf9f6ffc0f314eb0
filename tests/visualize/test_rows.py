from __future__ import annotations

import csv
import io
import math

from dinoskip.results.rows import EvalResult
from visualize.rows import benchmark_values, best, one_k_per_dataset, principal, rows_csv, single_blocks


def row(block, value, **more):
    fields = {"metric": "mIoU", "task": "probe", "dataset": "voc2012", "split": "val", "n": 10, **more}
    return EvalResult(value=value, block=str(block), **fields)


def test_only_the_last_epoch_and_unmarked_finite_rows_are_compared():
    rows = [row(1, 10.0, epoch=1), row(1, 20.0, epoch=2), row(2, math.nan, epoch=2)]
    rows += [row(2, 99.0, epoch=2, note="best on validation"), row(3, 15.0, epoch=2), row(1, 70.0, metric="mAcc")]
    found = benchmark_values({"a": rows, "b": []})
    assert [measure.label for measure in found] == ["mIoU, voc2012 val"]
    assert next(iter(found.values())) == {"a": {"1": 20.0, "3": 15.0}}


def test_measures_come_in_reading_order_and_k_is_sorted_as_a_number():
    votes = [row(1, 1.0, task="knn", metric=f"accuracy_k{k}") for k in (200, 10, 20)]
    found = benchmark_values({"a": [*votes, row(1, 1.0, task="tokencut", metric="CorLoc"), row(1, 1.0)]})
    labels = [measure.label.split(",")[0] for measure in found]
    assert labels == ["mIoU", "CorLoc", "k-NN (k = 10)", "k-NN (k = 20)", "k-NN (k = 200)"]
    assert [measure.metric for measure in one_k_per_dataset(found)] == ["mIoU", "CorLoc", "accuracy_k200"]


def test_settings_that_differ_split_a_measure_and_are_named():
    found = benchmark_values(
        {"a": [row(1, 5.0, norm="final", facet="out")], "b": [row(1, 6.0, norm="none", facet="out")]}
    )
    assert [measure.label for measure in found] == ["mIoU, voc2012 val (final)", "mIoU, voc2012 val (none)"]


def test_best_takes_single_blocks_by_number_and_the_earlier_of_equals():
    values = {"10": 5.0, "9": 5.0, "3+6": 50.0, "1": 4.0}
    assert best(values) == ("9", 5.0)
    assert list(single_blocks(values)) == [1, 9, 10]
    assert best({"3+6": 50.0}) is None


def test_csv_holds_every_row_and_runs_no_formula():
    rows = [row(1, 5.0), row(1, math.nan, note="best on validation", dataset='=cmd|"x"')]
    table = list(csv.DictReader(io.StringIO(rows_csv({"-a": rows}))))
    assert [line["value"] for line in table] == ["5.0", ""]
    assert table[0]["variant"] == "'-a"
    assert table[1]["dataset"] == '\'=cmd|"x"'


def test_retrieval_is_not_taken_for_the_probe():
    found = benchmark_values({"a": [row(1, 5.0, task="retrieve"), row(1, 6.0)]})
    assert [measure.label for measure in found] == ["mIoU, voc2012 val", "retrieval mIoU, voc2012 val"]


def test_the_setting_that_most_variants_have_is_shown_first():
    odd = [row(1, 9.0, norm="final", protocol="paper, 30 epochs")]
    variants = {"a": [row(1, 1.0, norm="none"), *odd], "b": [row(1, 2.0, norm="none")]}
    assert {name: [one.value for one in rows] for name, rows in principal(variants).items()} == {"a": [1.0], "b": [2.0]}


def test_rows_that_stand_in_no_table_are_left_as_they_are():
    rows = [row(1, 5.0, note="best on validation", norm="none"), row(1, 4.0, metric="mAcc", norm="layer"), row(1, 3.0)]
    assert principal({"a": rows}) == {"a": rows}
