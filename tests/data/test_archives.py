from __future__ import annotations

import gzip
import os
import stat
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dinoskip.data import archives
from dinoskip.data.archives import unpack
from dinoskip.errors import DataError, DiskFull
from tests.helpers.archives import make_tar, make_zip, tree

GOOD = {"top/a.txt": b"a" * 10, "top/sub/b.png": b"b" * 3000, "c.txt": b""}


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz"])
def test_unpacks_and_may_be_repeated(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        make_zip(path, {**GOOD, "top/empty/": b""})
    else:
        make_tar(path, {**GOOD, "folder": b""}, {"folder": tarfile.DIRTYPE}, f"w:{kind[4:]}" if "." in kind else "w")
    out = tmp_path / "out"
    assert unpack(path, out, lambda names: "below" if sorted(names) == sorted(GOOD) else "wrong") == 3
    assert tree(out) == {f"below/{name}": content for name, content in GOOD.items()}
    (out / "below" / "c.txt").unlink()
    (out / "below" / "mine.txt").write_text("kept")
    assert unpack(path, out, lambda _: "below") == 3
    assert tree(out) == {**{f"below/{name}": content for name, content in GOOD.items()}, "below/mine.txt": b"kept"}
    (out / "below" / "top" / "a.txt").write_bytes(b"a" * 9 + b"b")  # damaged: the length is the same
    with pytest.raises(DataError, match=r"below/top/a\.txt: differs from what"):
        unpack(path, out, lambda _: "below")
    (out / "below" / "top" / "a.txt").write_bytes(b"another length")
    (out / "below" / "c.txt").unlink()
    with pytest.raises(DataError, match=r"a.txt: differs from what a\..* holds"):
        unpack(path, out, lambda _: "below")
    assert not (out / "below" / "c.txt").exists()  # nothing moved before all was looked at
    assert not [p for p in os.listdir(out) if p != "below"]


LINKS = {"symlink": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE, "fifo": tarfile.FIFOTYPE}


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil", "C:/evil", ".tmp-unpack-x/evil"])
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_names_that_point_outside(tmp_path: Path, name: str, make) -> None:
    name = str(tmp_path / "evil") if name == "/evil" else name
    path = make(tmp_path / "archive", {"fine.txt": b"x", name: b"sentinel"})
    with pytest.raises(DataError, match=r"refused: entry .*evil") as caught:
        unpack(path, tmp_path / "deep" / "out")
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == {"archive": path.read_bytes()}


@pytest.mark.parametrize("kind", LINKS)
def test_links_and_devices_in_a_tar(tmp_path: Path, kind: str) -> None:
    files = {"fine.txt": b"x", "way": str(tmp_path).encode(), "way/evil": b"sentinel"}
    path = make_tar(tmp_path / "a.tar", files, {"way": LINKS[kind]})
    with pytest.raises(DataError, match="'way' is a link or a special file"):
        unpack(path, tmp_path / "out")
    assert tree(tmp_path) == {"a.tar": path.read_bytes()}


def test_links_in_a_zip_and_encryption(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", {"way": b"/etc", "way/evil": b"x"}, {"way": stat.S_IFLNK | 0o777})
    with pytest.raises(DataError, match="'way' is a link"):
        unpack(path, tmp_path / "out")
    path = make_zip(tmp_path / "b.zip", {"secret": b"x"})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="'secret' is encrypted"):
        unpack(path, tmp_path / "out")


def test_limits_twins_and_a_file_used_as_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = make_tar(tmp_path / "a.tar", GOOD), tmp_path / "out"
    with pytest.raises(DataError, match="more than 2 files"):
        unpack(path, out, max_files=2)
    with pytest.raises(DataError, match="or 3,000 bytes"):
        unpack(path, out, max_bytes=3000)
    for files in ({"a": b"1", "./a": b"2"}, {"a": b"1", "a/b": b"2"}):
        with pytest.raises(DataError, match=r"comes twice|lies in what is a file"):
            unpack(make_tar(tmp_path / "b.tar", files), out)
    assert not out.exists()
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=9))
    with pytest.raises(DiskFull, match="unpacks to 3,010 bytes, 9 are free"):
        unpack(path, out)
    assert tree(out) == {}


def test_damage_is_one_line(tmp_path: Path) -> None:
    whole = make_zip(tmp_path / "a.zip", {"a": os.urandom(5000)}).read_bytes()
    broken = {
        "short.zip": whole[:3000],
        "bits.zip": whole[:99] + b"~~~~" + whole[103:],
        "text.tar": b"hello",
        "no.zip": b"",
    }
    packed = gzip.compress(make_tar(tmp_path / "a.tar", {"a": os.urandom(5000)}).read_bytes())
    broken |= {"short.tar.gz": packed[:3000], "bits.tar.gz": packed[:-8] + b"~~~~" + packed[-4:]}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError) as caught:
            unpack(tmp_path / name, tmp_path / "out")
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not tree(tmp_path / "out"), name
    with pytest.raises(DataError, match="no such archive"):
        unpack(tmp_path / "none.zip", tmp_path / "out")


def test_a_killed_unpacking_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / "out" / ".tmp-unpack-dead" / "tree"
    left.mkdir(parents=True)
    (left / "big").write_bytes(b"x")
    unpack(make_tar(tmp_path / "a.tar", GOOD), tmp_path / "out")
    assert tree(tmp_path / "out") == GOOD


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz", "tar.bz2"])
def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALLOWED_BYTES", 1 << 20)
    files = {"small.txt": b"x", "zeros": bytes(8 << 20)}
    path = tmp_path / f"bomb.{kind}"
    make_zip(path, files) if kind == "zip" else make_tar(path, files, mode=f"w:{kind[4:]}")
    assert path.stat().st_size < (8 << 20) // 100
    with pytest.raises(
        DataError, match=r"bomb.* refused: it unpacks to more than [\d,]+ bytes, 100 times its own size"
    ):
        unpack(path, tmp_path / "out")
    assert tree(tmp_path / "out") == {}


def test_what_follows_the_end_of_a_compressed_tar_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALLOWED_BYTES", 1 << 20)
    whole = make_tar(tmp_path / "a.tar", {"a": b"x"}).read_bytes()
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(whole + bytes(16 << 20)))
    with pytest.raises(DataError, match="refused: it unpacks to more than"):
        unpack(path, tmp_path / "out")


@pytest.mark.timeout(20)
def test_a_fifo_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.zip")
    with pytest.raises(DataError, match=r"a.zip: is not a regular file"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
