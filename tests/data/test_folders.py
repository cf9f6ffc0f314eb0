from __future__ import annotations

import os
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import ImageFolder, LabelledFolder, list_images
from dinoskip.data import folders as module
from dinoskip.errors import DataError

NAMES = ["b.jpg", "a b.png", "a.JPEG", "Z.webp", "é.jpg", "new\nline.jpg", "sub/x.jpg", "sub/deep/y.tif", "sub.jpg"]
OTHERS = ["notes.txt", ".hidden.jpg", "._b.jpg", ".cache/c.jpg", "sub/Thumbs.db"]


def make(root: Path, names: list[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(unicodedata.normalize("NFC", name).encode())
    return root


def test_lists_only_images_in_one_fixed_order(tmp_path: Path) -> None:
    found = list_images(make(tmp_path, NAMES + OTHERS))
    assert found == tuple(sorted(NAMES, key=lambda name: name.encode()))


def test_order_and_fingerprint_do_not_depend_on_scan_order_or_unicode_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = ImageFolder.open(make(tmp_path / "one", NAMES))
    decomposed = ImageFolder.open(make(tmp_path / "two", [unicodedata.normalize("NFD", name) for name in NAMES]))
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


def test_fingerprint_sees_content_names_and_for_large_sets_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ImageFolder.open(make(tmp_path, ["a.jpg", "b.jpg"]))
    before = folder.fingerprint()
    (tmp_path / "a.jpg").write_bytes(b"A.jpg")  # same size
    assert folder.fingerprint() != before
    assert ImageFolder(tmp_path, ("a.jpg",)).fingerprint() != folder.fingerprint()
    monkeypatch.setattr(module, "FULL_HASH_BYTES", 3)
    by_size = folder.fingerprint()
    (tmp_path / "a.jpg").write_bytes(b"a.jpg")
    assert folder.fingerprint() == by_size
    (tmp_path / "a.jpg").write_bytes(b"longer")
    assert folder.fingerprint() != by_size


def test_links_are_followed_but_not_round_in_circles(tmp_path: Path) -> None:
    root = make(tmp_path / "root", ["a.jpg"])
    make(tmp_path / "elsewhere", ["b.jpg"])
    (root / "loop").symlink_to(root)
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    assert list_images(root) == ("a.jpg", "link/b.jpg")


def test_missing_empty_and_file_are_one_line_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, text in (("none", "no such folder"), ("empty", "no images here"), ("file", "is not a folder")):
        with pytest.raises(DataError, match=text) as caught:
            ImageFolder.open(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_labelled_folder_numbers_classes_as_in_training(tmp_path: Path) -> None:
    make(tmp_path / "train", ["cat/1.jpg", "ant/1.jpg", "cat/deep/2.jpg", "bee/1.jpg"])
    make(tmp_path / "val", ["cat/9.jpg"])
    train = LabelledFolder.open(tmp_path / "train")
    assert train.class_names == ("ant", "bee", "cat")
    assert train.names == ("ant/1.jpg", "bee/1.jpg", "cat/1.jpg", "cat/deep/2.jpg")
    assert train.labels.dtype == np.int64
    assert train.labels.tolist() == [0, 1, 2, 2]
    assert LabelledFolder.open(tmp_path / "val", train.class_names).labels.tolist() == [2]
    make(tmp_path / "val", ["wasp/9.jpg"])
    with pytest.raises(DataError, match="wasp"):
        LabelledFolder.open(tmp_path / "val", train.class_names)
    make(tmp_path / "train", ["loose.jpg"])
    with pytest.raises(DataError, match=r"loose.jpg: lies outside a class folder"):
        LabelledFolder.open(tmp_path / "train")


def test_image_folder_paths(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "s" / "x.png")
    folder = ImageFolder.open(str(tmp_path))
    assert (len(folder), folder.ids, folder.path(0)) == (1, ("s/x.png",), tmp_path / "s" / "x.png")


@pytest.mark.timeout(20)
def test_a_fifo_among_the_images_is_named_and_never_waited_for(photo_folder: Path) -> None:
    os.mkfifo(photo_folder / "a.jpg")
    folder = ImageFolder.open(photo_folder)
    for call in (folder.fingerprint, lambda: folder.read(0), lambda: folder.size(0), lambda: folder.encoded(0)):
        with pytest.raises(DataError, match=r"a.jpg: is not a regular file"):
            call()
