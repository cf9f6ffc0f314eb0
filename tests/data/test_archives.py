from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dinoskip.data import archives, prepare
from dinoskip.data.archives import unpack
from dinoskip.data.prepare import PUBLISHED, Published, missing
from dinoskip.errors import DataError, DiskFull
from dinoskip.tools import data_prepare

GOOD = {"top/a.txt": b"a" * 10, "top/sub/b.png": b"b" * 3000, "c.txt": b""}


def make_zip(path: Path, files: dict[str, bytes], modes: dict[str, int] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, 0) << 16
            archive.writestr(info, content)
    return path


def make_tar(path: Path, files: dict[str, bytes], kinds: dict[str, bytes] | None = None, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type = (kinds or {}).get(name, tarfile.REGTYPE)
            if info.type == tarfile.REGTYPE:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content.decode()
                archive.addfile(info)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


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
    with pytest.raises(DataError, match=r"refused: member .*evil") as caught:
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


def test_published_archives_are_checked_and_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "coco"
    maps = {"train2017/1.png": b"1", "val2017/2.png": b"2"}
    stuff = make_zip(tmp_path / "stuffthingmaps_trainval2017.zip", maps)
    renamed = make_zip(tmp_path / "maps.zip", maps)
    photos = make_zip(tmp_path / "photos.zip", {"train2017/1.jpg": b"x"})
    assert [line[:7] for line in missing("coco_stuff", out)] == ["missing"] * 3
    lines = prepare.prepare("coco_stuff", [stuff, renamed, photos], out)
    assert all("not checked" in line for line in lines)
    assert tree(out) == {
        "stuffthingmaps/train2017/1.png": b"1",
        "stuffthingmaps/val2017/2.png": b"2",
        "train2017/1.jpg": b"x",
    }
    assert [line.split(": ")[1] for line in missing("coco_stuff", out)] == ["val2017"]
    false = make_zip(tmp_path / "val2017.zip", {"val2017/2.jpg": b"x"})
    with pytest.raises(DataError, match=r"its md5 is .*, that of the published file 442b8da7639aecaf257c1dceb8ba8c80"):
        prepare.prepare("coco_stuff", [false], out)
    entry = PUBLISHED["coco_stuff"][1]
    true = Published(entry.url, entry.gives, archives.md5_file(false))
    monkeypatch.setitem(PUBLISHED, "coco_stuff", (true,))
    assert prepare.prepare("coco_stuff", [false], out) == ["val2017.zip: 1 files, md5 as published"]
    assert missing("coco_stuff", out) == []


def test_lists_and_augmented_masks(tmp_path: Path) -> None:
    out = tmp_path / "data"
    (tmp_path / "trainaug.txt").write_text("a\n")
    masks = make_zip(tmp_path / "SegmentationClassAug.zip", {"SegmentationClassAug/a.png": b"x"})
    assert any("trainaug" in line for line in missing("voc", out))
    prepare.prepare("voc", [masks, tmp_path / "trainaug.txt"], out)
    assert tree(out / "VOCdevkit" / "VOC2012") == {
        "SegmentationClassAug/a.png": b"x", "ImageSets/Segmentation/trainaug.txt": b"a\n",
    }  # fmt: skip
    assert not any("trainaug" in line for line in missing("voc", out))
    (tmp_path / "trainaug.txt").write_text("b\n")
    with pytest.raises(DataError, match="differs from"):
        prepare.prepare("voc", [tmp_path / "trainaug.txt"], out)
    (tmp_path / "coco_20k_filenames.txt").write_text("train2014/a.jpg\n")
    with pytest.raises(DataError, match="its md5 is"):
        prepare.prepare("coco20k", [tmp_path / "coco_20k_filenames.txt"], out)
    with pytest.raises(DataError, match="no such file"):
        prepare.prepare("voc", [tmp_path / "none.tar"], out)


def test_the_command_says_what_is_missing_and_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "ade")
    assert data_prepare(Namespace(kind="ade20k", archives=[], out=out)) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("missing: ADEChallengeData2016/images/training, ")
    assert "ADEChallengeData2016.zip (md5 7328b3957e407ddae1d3cbf487f149ef)" in line
    names = (f"ADEChallengeData2016/{part}/1" for part in ("images/training", "annotations/validation"))
    path = make_zip(tmp_path / "part.zip", dict.fromkeys(names, b"x"))
    assert data_prepare(Namespace(kind="ade20k", archives=[str(path)], out=out)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "part.zip: 2 files, md5 not known, not checked",
        f"next: dinoskip data check ade20k {out}",
    ]
