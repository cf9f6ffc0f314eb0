"""Results that come back from a slot: rows of finished stages, once each, and a teacher in shards."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dinoskip.errors import DataError
from dinoskip.io.files import load_tensors, save_tensors, write_json, write_manifest
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from studies.slots_rows import CARD, gather, join_shards, mib_of, opened, read_slots, write_shards
from tests.helpers.slots import EPOCHS, network

IDS = ("x", "y", "z")


def stage(study: Path, name: str, rows: list[RecordedRow], *, done: bool = True) -> None:
    folder = study / "stages" / name
    folder.mkdir(parents=True)
    write_recorded_rows(folder, IDS, rows)
    if done:
        write_manifest(folder, {})


def test_rows_of_finished_stages_are_gathered_once_and_read_again(tmp_path: Path) -> None:
    row = EvalResult("CorLoc", 100 / 3, "tokencut", "1", "boxed", "trainval", 3, model=network("A", 2), epoch=EPOCHS)
    floor = RecordedRow(row.baseline("random patch", 0.0), np.array([0, 0, 0], np.uint8))
    own = RecordedRow(row, np.array([1, 0, 0], np.uint8))
    other = RecordedRow(replace(row, model=network("B", 2)), np.array([0, 1, 0], np.uint8))
    accuracy = RecordedRow(replace(row, task="probe", metric="mAcc", dataset="voc_mini"))
    nothing = RecordedRow(replace(row, task="probe", metric="mIoU", dataset="voc_mini", value=float("nan")))
    study = tmp_path / "study"
    stage(study, "tokencut/a", [own, floor])
    stage(study, "tokencut/b", [other, floor])
    stage(study, "tokencut/c", [replace(own, row=replace(row, model="unfinished"))], done=False)
    best = RecordedRow(replace(nothing.row, value=99.0, note="best on validation"))
    stage(study, "probe/a", [accuracy, nothing, best])
    stage(study, "probe/b", [nothing])
    folder = tmp_path / "rows" / "slot2"
    assert gather(study, folder) == 4
    networks = {arm: network(arm, 2) for arm in "ABC"}
    write_json(folder / CARD, {"slot": 2, "epochs": EPOCHS, "networks": networks})
    with tarfile.open(tmp_path / "slot2.tar.gz", "w:gz") as stream:
        stream.add(folder, "slot2")
    (one,) = read_slots(tmp_path)
    assert one.number == 2
    assert {e.row.model for e in one.recorded if e.row.task == "tokencut"} == {
        network("A", 2), network("B", 2), "baseline: random patch"
    }  # fmt: skip
    (mine,) = [e for e in one.of("A") if e.row.task == "tokencut"]
    assert mine.values is not None
    assert mine.values.tolist() == [1, 0, 0]
    assert one.of("A", trained=False) == []
    assert mib_of(folder) < 1


def test_what_is_no_archive_of_a_slot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.tar.gz").write_text("no archive")
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz") as stream:
        stream.add(tmp_path / "text.tar.gz", "slot2/text")
    for name in ("text", "empty"):
        with pytest.raises(DataError, match=name), opened(tmp_path / f"{name}.tar.gz"):
            pass


def test_a_teacher_comes_back_in_shards_below_the_limit(tmp_path: Path) -> None:
    tensors = {f"blocks.{i}.weight": torch.randn(64, 64) for i in range(20)} | {"count": torch.tensor([3])}
    save_tensors(tmp_path / "weights.safetensors", tensors)
    paths = write_shards(tmp_path / "weights.safetensors", tmp_path / "out", "slot2-skip", mib=0.04)
    assert [path.name for path in paths] == [f"slot2-skip-{i}of4.safetensors" for i in range(1, 5)]
    assert all(path.stat().st_size < 0.045 * 2**20 for path in paths)
    joined = join_shards(paths)
    assert set(joined) == set(tensors)
    assert joined["count"].dtype == torch.int64
    for name, tensor in load_tensors(tmp_path / "weights.safetensors").items():
        assert torch.equal(joined[name], tensor.half() if tensor.is_floating_point() else tensor)
    with pytest.raises(ValueError, match="more than a shard"):
        write_shards(tmp_path / "weights.safetensors", tmp_path / "out", "slot2-skip", mib=0.001)
