"""Images that two sets have in common by their bytes, and what is read to find them."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from dinoskip.data import equal_images
from dinoskip.data.equal_images import Common, ImageFiles, common_images
from dinoskip.data.folders import ImageFolder
from dinoskip.data.shards import open_source
from dinoskip.errors import DataError


def written(folder: Path, files: dict[str, bytes]) -> ImageFiles:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return ImageFiles.of(ImageFolder.open(folder), folder.parent)


def noise(seed: int, size: int = 20_000) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_equal_files_are_counted_with_an_example(tmp_path: Path) -> None:
    train = written(
        tmp_path / "train", {"a.jpg": noise(1), "b.jpg": noise(2), "c.jpg": noise(2), "d.jpg": noise(3, 900)}
    )
    val = written(tmp_path / "val", {"x.jpg": noise(4), "y.jpg": noise(2), "z.jpg": noise(3, 900)})
    assert common_images(val, train) == Common(2, 3, 3, ("val/y.jpg", "train/b.jpg"))
    assert common_images(train, val) == Common(3, 4, 4, ("train/b.jpg", "val/y.jpg"))


@pytest.mark.parametrize("place", [0, 9_999, 10_000, 19_999])
def test_one_byte_makes_another_file_wherever_it_is(place: int, tmp_path: Path) -> None:
    other = bytearray(noise(1))
    other[place] ^= 1
    train, val = (
        written(tmp_path / name, {"a.jpg": one}) for name, one in (("train", noise(1)), ("val", bytes(other)))
    )
    assert common_images(val, train).count == 0


def test_only_files_of_equal_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = written(tmp_path / "train", {"a.jpg": noise(1, 500), "b.jpg": noise(2, 600), "c.jpg": noise(3, 700)})
    val = written(tmp_path / "val", {"x.jpg": noise(4, 501), "y.jpg": noise(5, 600)})
    read, opened = set[str](), equal_images.open_regular
    monkeypatch.setattr(equal_images, "open_regular", lambda path: (read.add(path.name), opened(path))[1])
    assert common_images(val, train).count == 0
    assert read == {"b.jpg", "y.jpg"}


def test_links_are_the_same_file_and_the_same_files_are_the_same_set(tmp_path: Path) -> None:
    train = written(tmp_path / "train", {"a.jpg": noise(1), "b.jpg": noise(2)})
    (tmp_path / "val").mkdir()
    os.link(tmp_path / "train/a.jpg", tmp_path / "val/x.jpg")
    (tmp_path / "val/y.jpg").symlink_to(tmp_path / "train/b.jpg")
    val = ImageFiles.of(ImageFolder.open(tmp_path / "val"), tmp_path)
    assert common_images(val, train) == Common(2, 2, 2, ("val/x.jpg", "train/a.jpg"), same=True)
    copies = written(tmp_path / "copies", {"a.jpg": noise(1), "b.jpg": noise(2)})
    assert common_images(copies, train) == Common(2, 2, 2, ("copies/a.jpg", "train/a.jpg"))
    part = written(tmp_path / "train", {"c.jpg": noise(3)})
    assert common_images(val, part) == Common(2, 2, 2, ("val/x.jpg", "train/a.jpg")), "a part of a set is not the set"


def test_images_inside_tar_files(tmp_path: Path) -> None:
    val = written(tmp_path / "val", {"x.jpg": noise(1), "y.jpg": noise(2)})
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards/0.tar", "w") as archive:
        for name in ("y", "x"):
            archive.add(tmp_path / "val" / f"{name}.jpg", f"{name}{name}.jpg")
        (tmp_path / "other.jpg").write_bytes(noise(9))
        archive.add(tmp_path / "other.jpg", "other.jpg")
    shards = ImageFiles.of(open_source(tmp_path / "shards"), tmp_path)
    assert (shards.sizes == 20_000).all()
    common = common_images(val, shards)
    assert (common.count, common.looked_at, common.same) == (2, 2, False)
    assert common.example[0] == "val/x.jpg"
    assert common.example[1].startswith("shards/0.tar at ")


def test_of_very_many_scored_images_an_even_sample_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_images, "MOST", 3)
    train = written(tmp_path / "train", {f"{i}.jpg": noise(i, 50) for i in range(7)})
    val = written(tmp_path / "val", {f"{i}.jpg": noise(i, 50) for i in range(7)})
    assert common_images(val, train) == Common(3, 3, 7, ("val/0.jpg", "train/0.jpg"))


def test_the_fingerprint_is_of_names_sizes_and_times(tmp_path: Path) -> None:
    before = written(tmp_path / "train", {"a.jpg": b"1", "b.jpg": b"2"}).fingerprint
    again = ImageFiles.of(ImageFolder.open(tmp_path / "train"), tmp_path)
    assert again.fingerprint == before
    os.utime(tmp_path / "train/a.jpg", ns=(1, 1))
    changed = ImageFiles.of(ImageFolder.open(tmp_path / "train"), tmp_path)
    assert changed.fingerprint != before
    (tmp_path / "train/b.jpg").unlink()
    with pytest.raises(DataError, match=r"b\.jpg"):
        common_images(changed, again)
