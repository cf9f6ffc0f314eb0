from __future__ import annotations

import os
import random
import shutil
import unicodedata
from pathlib import Path

import pytest

from dinoskip.data import ImageFolder, list_images
from dinoskip.data import listing as module
from dinoskip.errors import ConfigError, DataError
from tests.helpers.crops import write_files

NAMES = ["b.jpg", "a b.png", "a.JPEG", "Z.webp", "é.jpg", "new\nline.jpg", "sub/x.jpg", "sub/deep/y.tif", "sub.jpg"]
OTHERS = ["notes.txt", ".hidden.jpg", "._b.jpg", ".cache/c.jpg", "sub/Thumbs.db"]


def test_lists_only_images_in_one_fixed_order(tmp_path: Path) -> None:
    found = list_images(write_files(tmp_path, NAMES + OTHERS))
    assert found == tuple(sorted(NAMES, key=lambda name: name.encode()))


def test_order_and_fingerprint_do_not_depend_on_scan_order_or_unicode_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = ImageFolder.open(write_files(tmp_path / "one", NAMES))
    decomposed = ImageFolder.open(write_files(tmp_path / "two", [unicodedata.normalize("NFD", name) for name in NAMES]))
    assert decomposed.names != composed.names
    assert [unicodedata.normalize("NFC", name) for name in decomposed.names] == list(composed.names)
    assert decomposed.fingerprint() == composed.fingerprint()

    real = os.scandir

    class Shuffled:
        def __init__(self, path: str) -> None:
            with real(path) as entries:
                self.entries = list(entries)
            random.Random(3).shuffle(self.entries)

        def __enter__(self) -> list:
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(module.os, "scandir", Shuffled)
    assert list_images(tmp_path / "one") == composed.names


def test_fingerprint_sees_content_names_and_for_large_sets_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ImageFolder.open(write_files(tmp_path, ["a.jpg", "b.jpg"]))
    before = folder.fingerprint()
    (tmp_path / "a.jpg").write_bytes(b"A.jpg")  # same size
    assert folder.fingerprint() != before
    assert ImageFolder(tmp_path, ("a.jpg",)).fingerprint() != folder.fingerprint()
    of_content = folder.fingerprint()
    monkeypatch.setattr(module, "FULL_HASH_BYTES", 3)
    sampled = folder.fingerprint()
    assert sampled.startswith("sampled-")
    times = (tmp_path / "a.jpg").stat().st_mtime
    (tmp_path / "a.jpg").write_bytes(b"a.jpg")  # same size
    os.utime(tmp_path / "a.jpg", (times, times))
    assert folder.fingerprint() != sampled, "its bytes are in the sample"
    (tmp_path / "a.jpg").write_bytes(b"A.jpg")
    os.utime(tmp_path / "a.jpg", (times, times))
    assert folder.fingerprint() == sampled
    monkeypatch.setattr(module, "SAMPLED_FILES", 1)  # of which b.jpg is none
    sampled = folder.fingerprint()
    os.utime(tmp_path / "b.jpg", (times, times + 100))
    assert folder.fingerprint() != sampled
    monkeypatch.setenv("DINOSKIP_VERIFY_DATA", "1")
    assert folder.fingerprint() == of_content
    for path, size in ((tmp_path / "a.jpg", 5), (tmp_path / "b.jpg", 5)):
        path.write_bytes(b"x" * size)
        assert folder.fingerprint() != of_content
    monkeypatch.setenv("DINOSKIP_VERIFY_DATA", "yes")
    with pytest.raises(ConfigError, match="neither 0 nor 1"):
        folder.fingerprint()


def test_links_are_followed_but_not_round_in_circles(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", ["a.jpg"])
    write_files(tmp_path / "elsewhere", ["b.jpg"])
    (root / "loop").symlink_to(root)
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    assert list_images(root) == ("a.jpg", "link/b.jpg")


@pytest.mark.parametrize("name", ["__MACOSX", "@eaDir", ".ipynb_checkpoints"])
def test_what_tools_leave_is_passed_over_with_a_line(
    photo_folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = list_images(photo_folder)
    shutil.copytree(photo_folder, photo_folder.parent / "copy")
    shutil.move(photo_folder.parent / "copy", photo_folder / name)
    with caplog.at_level("INFO", logger="dinoskip"):
        assert list_images(photo_folder) == before
        list_images(photo_folder)
    assert [name in record.getMessage() for record in caplog.records] == [True]


def test_missing_empty_and_file_are_one_line_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, text in (("none", "no such folder"), ("empty", "no images here"), ("file", "is a file")):
        with pytest.raises(DataError, match=text) as caught:
            ImageFolder.open(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.timeout(20)
def test_a_fifo_among_the_images_is_named_and_never_waited_for(photo_folder: Path) -> None:
    os.mkfifo(photo_folder / "a.jpg")
    folder = ImageFolder.open(photo_folder)
    for call in (folder.fingerprint, lambda: folder.read(0), lambda: folder.size(0), lambda: folder.encoded(0)):
        with pytest.raises(DataError, match=r"a.jpg: is not a regular file"):
            call()
