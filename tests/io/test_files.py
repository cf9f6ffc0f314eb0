"""Files are complete or absent, damage is seen, foreign files are opened safely."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from dinoskip.errors import DataError, DiskFull, WeightsError, is_disk_full
from dinoskip.io import files
from dinoskip.io.files import find_below


def test_atomic_write_leaves_the_old_file_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def broken() -> None:
        with files.atomic_path(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_names_of_files_that_are_not_utf8_can_be_written(tmp_path: Path) -> None:
    files.write_text(tmp_path / "rows.csv", "Käse\udcff.png\n")
    assert (tmp_path / "rows.csv").read_text(encoding="utf-8") == "Käse\\udcff.png\n"


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_mode_follows_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        files.save_tensors(tmp_path / "w.safetensors", {"a": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "w.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask


def test_tensors_round_trip_with_metadata(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4).T, "b": torch.arange(3)}
    files.save_tensors(tmp_path / "w.safetensors", tensors, {"k": "v"})
    loaded = files.load_tensors(tmp_path / "w.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert files.read_tensor_header(tmp_path / "w.safetensors").metadata == {"k": "v"}


def test_truncated_weights_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    files.save_tensors(path, {"a": torch.randn(100)})
    path.write_bytes(path.read_bytes()[:50])
    for function in (files.load_tensors, files.read_tensor_header):
        with pytest.raises(WeightsError) as caught:
            function(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


class _Evil:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> object:
        return (os.mkdir, (str(self.sentinel),))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    torch.save({"state": _Evil(sentinel)}, tmp_path / "evil.pth")
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(_Evil(sentinel)))
    for name in ("evil.pth", "raw.pth", "absent.pth"):
        with pytest.raises(WeightsError):
            files.load_torch_file(tmp_path / name)
    assert not sentinel.exists()


def test_empty_and_truncated_pth(tmp_path: Path) -> None:
    (tmp_path / "empty.pth").write_bytes(b"")
    torch.save({"a": torch.randn(1000)}, tmp_path / "cut.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "cut.pth").read_bytes()[:900])
    for name in ("empty.pth", "cut.pth"):
        with pytest.raises(WeightsError, match=name):
            files.load_torch_file(tmp_path / name)


def test_manifest_sees_every_change(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.bin").write_bytes(b"abc")
    (folder / "log.txt").write_text("12:00")
    first = files.write_manifest(folder, {"k": 1}, volatile=("log.txt",))
    assert files.verify_manifest(folder) == []
    (folder / "log.txt").write_text("12:01")
    assert files.write_manifest(folder, {"k": 2}, volatile=("log.txt",)) == first
    (folder / "sub" / "a.bin").write_bytes(b"abd")
    assert "sha256" in files.verify_manifest(folder)[0]
    (folder / "sub" / "a.bin").write_bytes(b"ab")
    assert "2 bytes, 3 expected" in files.verify_manifest(folder)[0]
    (folder / "sub" / "a.bin").unlink()
    assert "missing" in files.verify_manifest(folder)[0]


def test_what_has_a_manifest_of_its_own_may_be_left_out(tmp_path: Path) -> None:
    for name in ("rows.json", "store/1.npy", "store/deep/2.npy", "other/3.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    files.write_manifest(tmp_path / "store")
    files.write_manifest(tmp_path)
    for name in ("store/1.npy", "store/deep/2.npy"):
        (tmp_path / name).write_text("b")
    assert len(files.verify_manifest(tmp_path)) == 2
    assert files.verify_manifest(tmp_path, inner=False) == []
    for name in ("rows.json", "other/3.npy", "store/MANIFEST.json"):
        (tmp_path / name).write_text("b")
    assert len(files.verify_manifest(tmp_path, inner=False)) == 3


ENTRY = {"bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {}}, "it names no file"),
        ({"hash": None}, "its hash is no sha256"),
        ({"hash": "0" * 63}, "its hash is no sha256"),
        ({"files": {"a": None}}, "entry 'a' has no size and sha256"),
        ({"files": {"a": ENTRY | {"bytes": "1"}}}, "entry 'a' has no size and sha256"),
        ({"files": {"a": ENTRY | {"sha256": None}}}, "entry 'a' has no size and sha256"),
        ({"files": {"a\0b": ENTRY}}, "is not a file name"),
        ({"files": []}, "not a dinoskip manifest"),
        ({"info": None}, "not a dinoskip manifest"),
    ],
)
def test_damaged_manifests_verify_nothing(tmp_path: Path, change: dict[str, object], message: str) -> None:
    manifest = {"format": 1, "hash": "0" * 64, "files": {"a": ENTRY}, "info": {}} | change
    (tmp_path / files.MANIFEST).write_text(json.dumps(manifest))
    (tmp_path / "a").write_text("x")
    (problem,) = files.verify_manifest(tmp_path)
    assert message in problem
    assert message in str(files.verify_beside_manifest(tmp_path / "a"))


def test_manifests_of_long_names_and_deep_brackets(tmp_path: Path) -> None:
    (tmp_path / files.MANIFEST).write_text(
        json.dumps({"format": 1, "hash": "0" * 64, "files": {"a" * 5000: ENTRY}, "info": {}})
    )
    assert "is not a file name" in files.verify_manifest(tmp_path)[0]
    (tmp_path / files.MANIFEST).write_text("[" * 100_000)
    assert "cannot be read as JSON: nested too deeply" in files.verify_manifest(tmp_path)[0]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b"])
def test_manifest_entries_stay_inside(tmp_path: Path, name: str) -> None:
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"format": 1, "hash": "", "files": {name: {}}, "info": {}}))
    with pytest.raises(DataError, match="outside"):
        files.read_manifest(tmp_path)


def test_a_search_passes_over_what_another_process_removes_meanwhile(tmp_path: Path) -> None:
    over, stays = threading.Event(), tmp_path / "stays" / "MANIFEST.json"
    stays.parent.mkdir()
    stays.touch()

    def come_and_go() -> None:
        while not over.is_set():
            for name in range(30):
                (tmp_path / f"{name}" / "stage" / "key").mkdir(parents=True)
            for name in range(30):
                shutil.rmtree(tmp_path / f"{name}")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        searches = [find_below(tmp_path, "MANIFEST.json") for _ in range(1000)]  # of rglob, one in 17 raises
    finally:
        over.set()
        other.join()
    assert searches == [[stays]] * 1000
    assert find_below(tmp_path, "st*") == [stays.parent]
    assert find_below(tmp_path / "absent", "*") == []


def test_publish_replaces_a_directory(tmp_path: Path) -> None:
    for content in ("one", "two"):
        temporary = tmp_path / ".tmp-x"
        temporary.mkdir()
        (temporary / "a").write_text(content)
        files.publish_directory(temporary, tmp_path / "final")
    assert (tmp_path / "final" / "a").read_text() == "two"
    assert sorted(os.listdir(tmp_path)) == ["final"]


@pytest.mark.parametrize(
    "writer", ["files.write_bytes(p, b'x' * 200000)", "files.save_tensors(p, {'a': torch.zeros(50000)})"]
)
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path, writer: str) -> None:
    code = f"""
        import resource, signal, sys, torch
        from pathlib import Path
        from dinoskip.io import files
        from dinoskip.errors import DiskFull
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        p = Path({str(tmp_path)!r}) / "big"
        try:
            {writer}
        except DiskFull as error:
            sys.exit(error.exit_code)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=120, check=False)
    assert done.returncode == DiskFull.exit_code
    assert os.listdir(tmp_path) == []


def test_torch_says_disk_full_in_its_own_words() -> None:
    assert is_disk_full(RuntimeError("[enforce fail at inline_container.cc:668] . unexpected pos 64 vs 0"))
    assert not is_disk_full(RuntimeError("shape mismatch"))
