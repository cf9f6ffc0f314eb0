"""Archives and shards, damaged: unpacked below the folder, or one line that names the archive and an empty folder."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import archives
from dinoskip.data.archives import unpack
from dinoskip.data.shards import TarShards
from tests.helpers.archives import make_tar, make_zip, tree
from tests.helpers.mutations import attack, refused

FILES = {"top/a.txt": b"a" * 700, "top/sub/b.cls": b"3", "c" * 120 + ".png": b"x" * 30}


def picture() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 9, 3), 7, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def seeds(folder: Path) -> list[bytes]:
    """A zip, a tar, the same compressed, one with a link and a long name."""
    plain = make_tar(folder / "seed.tar", FILES).read_bytes()
    linked = make_tar(folder / "link.tar", {"a": b"x", "b": b"a"}, {"b": tarfile.SYMTYPE}).read_bytes()
    packed = make_zip(folder / "seed.zip", FILES).read_bytes()
    return [packed, plain, linked, gzip.compress(plain), bz2.compress(plain), lzma.compress(plain)]


def check_archive(content: bytes, folder: Path) -> None:
    path, out = folder / "case.bin", folder / "parent" / "out"
    path.write_bytes(content)
    shutil.rmtree(folder / "parent", ignore_errors=True)
    (folder / "parent").mkdir()
    if refused(lambda: unpack(path, out, max_bytes=1 << 20), str(path)):
        assert tree(folder / "parent") == {}
    assert not [entry for entry in (folder / "parent").iterdir() if entry != out]


def check_shard(content: bytes, folder: Path) -> None:
    path = folder / "case.tar"
    path.write_bytes(content)
    opened: list[TarShards] = []
    if not refused(lambda: opened.append(TarShards.open(path)), str(folder)):
        for index in range(len(opened[0])):
            refused(lambda index=index: opened[0].read(index), str(folder))


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ALLOWED_BYTES", 1 << 20)
    monkeypatch.setenv("DINOSKIP_MAX_MEGAPIXELS", "1")


def shards(folder: Path) -> list[bytes]:
    files = {"a.png": picture(), "a.cls": b"1", "dog/b.png": picture(), "dog/b.cls": b"0"}
    return [make_tar(folder / "shard.tar", files).read_bytes()]


def test_archives(tmp_path: Path) -> None:
    attack(seeds(tmp_path), lambda content: check_archive(content, tmp_path), 100)


def test_shards(tmp_path: Path) -> None:
    attack(shards(tmp_path), lambda content: check_shard(content, tmp_path), 100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_archives_many(tmp_path: Path) -> None:
    attack(seeds(tmp_path), lambda content: check_archive(content, tmp_path), 10_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_shards_many(tmp_path: Path) -> None:
    attack(shards(tmp_path), lambda content: check_shard(content, tmp_path), 10_000)
