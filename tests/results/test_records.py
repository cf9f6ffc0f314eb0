"""Per-image records: what is written is read, and belongs to its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dinoskip.errors import DataError
from dinoskip.results.records import areas_record, read_records, write_records
from dinoskip.results.rows import EvalResult, write_rows
from eval.metrics import ConfusionMatrix


def row(block: str, metric: str = "CorLoc") -> EvalResult:
    return EvalResult(metric, 50.0, "tokencut", block, "voc", "val", 3)


def test_what_is_written_is_read_by_row(tmp_path: Path) -> None:
    rows = [row("1"), row("2"), row("3", "mIoU")]
    write_rows(tmp_path / "rows.json", rows)
    areas = np.arange(12).reshape(3, 2, 2) * 40_000
    write_records(tmp_path / "records.npz", ["a", "ü", "c"], {2: areas, 0: np.array([True, False, True])})
    found = read_records(tmp_path)
    assert list(found) == [rows[0], rows[2]]
    assert found[rows[0]].ids == ("a", "ü", "c")
    assert found[rows[0]].values.dtype == np.uint8
    assert found[rows[0]].values.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(found[rows[2]].values, areas)
    assert found[rows[0]].of(["c", "ü"]).tolist() == [1, 0]


def test_same_records_same_bytes(tmp_path: Path) -> None:
    for name in ("one.npz", "two.npz"):
        write_records(tmp_path / name, ["a", "b"], {1: np.array([1, 0]), 0: np.array([0, 0])})
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"one.npz", "two.npz"}


def test_a_folder_without_records_has_none(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [row("1")])
    assert read_records(tmp_path) == {}


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 4)), np.zeros((2, 3, 3)), np.zeros((2, 3, 2, 1))])
def test_records_of_another_shape_are_refused(values: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not fit 2 images"):
        write_records(tmp_path / "records.npz", ["a", "b"], {0: values.astype(np.int64)})
    assert not list(tmp_path.iterdir())


def test_damage_and_records_of_other_rows_are_one_line(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [row("1")])
    write_records(tmp_path / "records.npz", ["a"], {1: np.array([1])})
    with pytest.raises(DataError, match="does not belong to the rows"):
        read_records(tmp_path)
    content = (tmp_path / "records.npz").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"nonsense"):
        (tmp_path / "records.npz").write_bytes(damaged)
        with pytest.raises(DataError, match="per-image records"):
            read_records(tmp_path)


def test_areas_give_the_miou() -> None:
    rng = np.random.default_rng(0)
    areas, whole = [], ConfusionMatrix(4)
    for _ in range(5):
        matrix = ConfusionMatrix(4)
        pred, label = rng.integers(0, 4, (6, 7)), rng.choice([0, 1, 2, 3, 255], (6, 7))
        matrix.update(pred, label)
        whole.update(pred, label)
        areas.append(matrix.areas)
    record = areas_record(np.array(areas)).sum(0)
    np.testing.assert_allclose(record[:, 0] / record[:, 1], whole.scores().iou)


def test_scores_of_images_come_back_exactly_with_those_that_are_none(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [row("1", "delta1")])
    values = np.array([0.1, np.nan, 1 / 3])
    write_records(tmp_path / "records.npz", ["a", "b", "c"], {0: values})
    (records,) = read_records(tmp_path).values()
    np.testing.assert_array_equal(records.values, values)


def test_areas_beyond_32_bits_are_kept(tmp_path: Path) -> None:
    """Two times 2.2 thousand million pixels wrapped to a negative union."""
    areas = np.array([[[1_200_000_000, 5], [2_200_000_000, 6], [2_200_000_000, 7]]])
    record = areas_record(areas)
    assert record.tolist() == [[[1_200_000_000, 3_200_000_000], [5, 8]]]
    write_rows(tmp_path / "rows.json", [row("1", "mIoU")])
    write_records(tmp_path / "records.npz", ["a"], {0: record})
    (found,) = read_records(tmp_path).values()
    assert found.values.tolist() == record.tolist()
    assert found.values.dtype == np.uint32
