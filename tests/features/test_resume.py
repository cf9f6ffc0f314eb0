"""Whatever stops an export, the same call continues it, and the finished store is the same to the byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dinoskip.features.writer as writer
from dinoskip.errors import DiskFull, OutputInUse
from dinoskip.features import FeatureStore, Transform, export
from dinoskip.io.files import read_manifest, write_json, write_text
from dinoskip.io.locks import directory_lock
from dinoskip.models import Backbone, load_backbone

SQUARE = Transform(size=32)


def test_sigkill_anywhere_then_byte_identical(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_export.py")
    found_here = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": found_here}
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert len(rows) == 9
    for point, (signal, _, same, leftovers) in rows.items():
        assert (signal, same, leftovers) == ("9", "True", "False"), (point, done.stdout)
    # four batches, each of one size: how many forward passes the second run still needed
    assert {point: int(row[1]) for point, row in rows.items()} == {
        "write3": 4, "write9": 3, "finish2": 3, "flush4": 1, "prepare": 4,
        "publish": 0, "manifest": 0, "rename": 0, "cleanup": 0,
    }  # fmt: skip


def count_calls(backbone: Backbone, monkeypatch: pytest.MonkeyPatch, stop_at: int = 0) -> list[int]:
    calls: list[int] = []
    original = backbone.layers

    def layers(*args: Any, **kw: Any) -> Any:
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return original(*args, **kw)

    monkeypatch.setattr(backbone, "layers", layers)
    return calls


def interrupted_export(
    backbone: Backbone, stop_at: int, monkeypatch: pytest.MonkeyPatch, *args: Any, **kw: Any
) -> None:
    """An export that Ctrl-C ends at its batch ``stop_at``; what is done is on disk."""
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        count_calls(backbone, patch, stop_at)
        with pytest.raises(KeyboardInterrupt):
            export(backbone, *args, **kw)


def test_keyboard_interrupt_keeps_what_is_done(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, out = images([(32, 32)] * 6), tmp_path / "store"
    interrupted_export(backbone, 3, monkeypatch, dataset, out, "all", transform=SQUARE, batch_size=2)
    assert not out.exists()
    calls = count_calls(backbone, monkeypatch)
    export(backbone, dataset, out, "all", transform=SQUARE, batch_size=2)
    assert len(calls) == 1
    straight = tmp_path / "straight"
    export(backbone, dataset, straight, "all", transform=SQUARE, batch_size=2)
    assert read_manifest(out).files == read_manifest(straight).files
    assert not (tmp_path / ".partial-store").exists()


@pytest.mark.parametrize("mode", ["square", "native"])
@pytest.mark.parametrize("damage", ["rows", "class tokens", "journal", "mark of what was not written", "cut journal"])
def test_a_flipped_bit_in_half_an_export_is_computed_anew(
    mode: Any, damage: str, tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, out = images([(32, 32)] * 3 + [(48, 32)] * 3), tmp_path / "store"
    chosen = Transform(size=32) if mode == "square" else Transform(mode="native")
    interrupted_export(backbone, 3, monkeypatch, dataset, out, "all", transform=chosen, batch_size=2)
    work, (at, bit) = tmp_path / ".partial-store", (-1, 1)
    if damage in {"rows", "class tokens"}:  # of the first batch, which comes first in every file
        path = work / "store" / ("tokens_block2.npy" if damage == "rows" else "cls_block1.npy")
        at, bit = 128 + 5, 64
    else:
        path = work / "journal-0"
        at = 1 if damage == "journal" else 2 * writer.SUM_BYTES
    content = bytearray(path.read_bytes())
    content += bytes(max(0, at + 1 - len(content)))
    content[at] ^= bit
    path.write_bytes(content[: writer.SUM_BYTES + 1] if damage == "cut journal" else content[: len(content)])
    calls = count_calls(backbone, monkeypatch)
    export(backbone, dataset, out, "all", transform=chosen, batch_size=2)
    straight = tmp_path / "straight"
    whole = len(calls)
    export(backbone, dataset, straight, "all", transform=chosen, batch_size=2)
    assert read_manifest(out).files == read_manifest(straight).files
    batches = len(calls) - whole
    assert whole == batches - 2 + (damage != "mark of what was not written")


def test_work_of_other_settings_is_discarded(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, out = images([(32, 32)] * 4), tmp_path / "store"
    interrupted_export(backbone, 2, monkeypatch, dataset, out, "all", transform=SQUARE, batch_size=2)
    calls = count_calls(backbone, monkeypatch)
    store = export(backbone, dataset, out, "all", norm="none", transform=SQUARE, batch_size=2)
    assert len(calls) == 2
    assert store.norm == "none"
    assert store.verify() == []


def test_finished_store_is_returned_and_anything_else_refused(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, out = images([(32, 32)] * 2), tmp_path / "store"
    export(backbone, dataset, out, [1], transform=SQUARE)
    calls = count_calls(backbone, monkeypatch)
    assert export(backbone, dataset, out, [1], transform=SQUARE, batch_size=1).blocks == (1,)
    assert not calls
    with pytest.raises(OutputInUse, match="something other"):
        export(backbone, dataset, out, [2], transform=SQUARE)
    assert FeatureStore.open(out).verify() == []
    assert export(backbone, dataset, out, [2], transform=SQUARE, replace=True).blocks == (2,)
    assert FeatureStore.open(out).verify() == []
    write_text(tmp_path / "mine" / "notes.txt", "mine")
    with pytest.raises(OutputInUse):
        export(backbone, dataset, tmp_path / "mine", [1], transform=SQUARE, replace=True)
    assert (tmp_path / "mine" / "notes.txt").exists()


def test_positions_interpolated_otherwise_are_other_features(tmp_path: Path, images: Callable) -> None:
    spec, dataset = "timm:vit_tiny_patch16_224,pretrained=false,depth=1", images([(32, 32)])
    export(load_backbone(spec), dataset, tmp_path / "store", [1], transform=SQUARE)
    with pytest.raises(OutputInUse, match="something other"):
        export(load_backbone(f"{spec},pos_embed=dino"), dataset, tmp_path / "store", [1], transform=SQUARE)


def test_one_export_at_a_time(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    """While another process exports something else to the same place it is refused; its own like it would wait for."""
    dataset, work = images([(32, 32)]), tmp_path / ".partial-store"
    with directory_lock(work):
        write_json(work / "state.json", {"key": "of another export", "batch_size": 1})
        with pytest.raises(OutputInUse, match="in use by process"):
            export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE)
    assert export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE).verify() == []


def test_a_working_directory_that_is_removed_is_an_error(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go to open files, so nothing would fail before the end: the writer looks before it publishes."""
    dataset, complete = images([(32, 32)]), writer.StoreWriter.complete

    def removed(self: writer.StoreWriter) -> None:
        complete(self)
        shutil.rmtree(self.work)

    with monkeypatch.context() as patch:
        patch.setattr(writer.StoreWriter, "complete", removed)
        with pytest.raises(OutputInUse, match=r"\.partial-store: not the directory that this run locked"):
            export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE)
    assert not (tmp_path / "store").exists()
    assert export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE).verify() == []


def test_full_disk_is_one_line(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    dataset = images([(32, 32)])
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(DiskFull, match="no space left"):
            export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE)
    assert not (tmp_path / "store").exists()
    assert export(backbone, dataset, tmp_path / "store", [1], transform=SQUARE).verify() == []
