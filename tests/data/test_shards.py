from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dinoskip.data import ImageFolder, listing
from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.data.loader import BatchSplit
from dinoskip.data.shards import Source, TarShards, open_source
from dinoskip.data.train_loader import TrainLoader, ViewRecipe
from dinoskip.errors import DataError


def write_tar(path: Path, members: dict[str, bytes], **kind: object) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in kind.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def shards(photo_folder: Path, tmp_path: Path) -> Path:
    """The photographs of the folder in its order, in two shards."""
    folder = ImageFolder.open(photo_folder)
    out = tmp_path / "shards"
    out.mkdir()
    for number, half in enumerate((folder.names[:5], folder.names[5:])):
        write_tar(out / f"part-{number}.tar", {name: (photo_folder / name).read_bytes() for name in half})
    return out


def test_what_lies_there_is_told_apart(photo_folder: Path, shards: Path, tmp_path: Path) -> None:
    assert isinstance(open_source(photo_folder), ImageFolder)
    assert len(open_source(shards)) == 12
    one = open_source(shards / "part-0.tar")
    assert isinstance(one, TarShards)
    assert len(one) == 5
    (photo_folder / "left-over.tar").write_bytes((shards / "part-0.tar").read_bytes())
    assert isinstance(open_source(photo_folder), ImageFolder)  # images beside tar files: a folder of images
    for wrong in (tmp_path / "none", photo_folder / "p01.jpg"):
        with pytest.raises(DataError, match=wrong.name):
            open_source(wrong)


def test_a_single_image_is_no_folder(photo_folder: Path) -> None:
    image = next(path for path in sorted(photo_folder.rglob("*")) if path.is_file())
    with pytest.raises(DataError, match="is one image") as caught:
        open_source(image)
    assert "a folder of images, or a .tar" in str(caught.value)


def test_shards_hold_the_folders_images_and_train_alike(photo_folder: Path, shards: Path) -> None:
    folder, packed = open_source(photo_folder), open_source(shards)
    assert [name.partition("/")[2] for name in packed.names] == list(folder.names)
    for index in range(12):
        assert (packed.read(index) == folder.read(index)).all()
        assert packed.size(index) == folder.size(index)

    def views(source: Source, workers: int) -> list[torch.Tensor]:
        crops = CropConfig(global_size=32, local_size=16, num_local=1)
        loader = TrainLoader(
            source, ViewRecipe(crops, AugmentConfig()), BatchSplit(4), seed=1, min_side=8, workers=workers
        )
        found = [view for batch in loader.epoch(0) for view in loader.views(batch)]
        loader.close()
        return found

    expected = views(folder, 0)
    for workers in (0, 2):
        assert all(torch.equal(a, b) for a, b in zip(views(packed, workers), expected, strict=True))
    again = pickle.loads(pickle.dumps(packed))  # as a spawned worker gets it
    assert (again.read(3) == packed.read(3)).all()


def test_fingerprint_is_of_content_not_of_place(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_source(shards).fingerprint()
    other = tmp_path / "elsewhere" / "x"
    shutil.copytree(shards, other)
    assert open_source(other).fingerprint() == before
    for limit in (1 << 30, 10):
        monkeypatch.setattr(listing, "FULL_HASH_BYTES", limit)
        whole = open_source(shards).fingerprint()
        assert whole.startswith("sampled-") == (limit == 10)
        members = {f"n{number}.jpg": b"12345" for number in range(3)}
        write_tar(other / "part-0.tar", members)
        assert open_source(other).fingerprint() != whole
        shutil.copy2(shards / "part-0.tar", other / "part-0.tar")  # with its time
        assert open_source(other).fingerprint() == whole


def test_labels_from_cls_members_or_folders(photo_folder: Path, tmp_path: Path) -> None:
    image = (photo_folder / "p01.jpg").read_bytes()
    numbered = TarShards.open(
        write_tar(tmp_path / "a.tar", {"x.jpg": image, "x.cls": b"3\n", "y.seg.png": image, "y.cls": b"0"})
    )
    assert numbered.labels is not None
    assert numbered.labels.tolist() == [3, 0]
    named = TarShards.open(
        write_tar(tmp_path / "b.tar", {"./dog/1.jpg": image, "cat/1.jpg": image, "cat/2.jpg": image})
    )
    assert named.labels is not None
    assert (named.labels.tolist(), named.class_names) == ([1, 0, 0], ("cat", "dog"))
    assert TarShards.open(write_tar(tmp_path / "c.tar", {"1.jpg": image, "b/2.jpg": image})).labels is None
    with pytest.raises(DataError, match=r"d.tar: x.cls: expected a class number, got '-1'"):
        TarShards.open(write_tar(tmp_path / "d.tar", {"x.jpg": image, "x.cls": b"-1"}))
    for number in (b"1000000", b"9" * 30):  # as many names of classes would fill the memory
        with pytest.raises(DataError, match=r"e.tar: x.cls: expected a class number, got '"):
            TarShards.open(write_tar(tmp_path / "e.tar", {"x.jpg": image, "x.cls": number}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../../evil.jpg", {}),
        ("/tmp/evil.jpg", {}),
        ("a/../evil.jpg", {}),
        ("link.jpg", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("hard.jpg", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
        ("device.jpg", {"type": tarfile.CHRTYPE}),
        ("pipe.jpg", {"type": tarfile.FIFOTYPE}),
    ],
)
def test_unsafe_members_are_refused_by_name(tmp_path: Path, name: str, kind: dict) -> None:
    path = write_tar(tmp_path / "evil.tar", {name: b""}, **kind)
    with pytest.raises(
        DataError, match=r"evil.tar: refused: entry .*evil.jpg|evil.tar: refused: member '(link|hard|d|p)"
    ):
        open_source(path)
    assert sorted(os.listdir(tmp_path)) == ["evil.tar"]


def test_damage_is_one_line(shards: Path, tmp_path: Path) -> None:
    whole = (shards / "part-1.tar").read_bytes()
    for number, content in enumerate((b"", b"not a tar" * 100, whole[:3000], b"\x1f\x8b" + whole)):
        path = tmp_path / f"bad-{number}.tar"
        path.write_bytes(content)
        with pytest.raises(DataError, match=path.name) as caught:
            open_source(path)
        assert "\n" not in str(caught.value)
    twice = {"a.jpg": b"1"}
    path = write_tar(tmp_path / "twice.tar", twice)
    with tarfile.open(path, "a") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO())
    with pytest.raises(DataError, match="two images of one name"):
        open_source(path)
    bad = open_source(write_tar(tmp_path / "image.tar", {"a.jpg": b"no image"}))
    with pytest.raises(DataError, match=r"image.tar/a.jpg: not a readable image"):
        bad.read(0)


def test_the_index_is_kept_and_believed_only_while_it_fits(shards: Path) -> None:
    path = shards / "part-0.tar"
    first = TarShards.open(path)
    index = shards / ".part-0.tar.index.json"
    assert index.exists()
    assert TarShards.open(path).names == first.names
    header, rows = index.read_text().splitlines()
    saved = json.loads(rows)

    def sealed(images: object) -> str:
        """An index made to do harm: its sha256 agrees with what it holds."""
        text = json.dumps(images)
        return json.dumps({**json.loads(header), "sha256": hashlib.sha256(text.encode()).hexdigest()}) + f"\n{text}"

    far = sealed([[row[0], (1 << 63) - 1, (1 << 63) - 1, -1] for row in saved])
    many, nested = sealed([[*row[:3], 1 << 60] for row in saved]), header + "\n" + "[" * 100_000
    for damaged in ("{", "[]", '{"mark": 1}', header, f"{header}\n", sealed([[]]), far, many, nested):
        index.write_text(damaged)
        assert (TarShards.open(path).offsets == first.offsets).all()
    image = ImageFolder.open(shards.parent / "photos").root / "p01.jpg"
    write_tar(path, {"other.jpg": image.read_bytes()})
    assert TarShards.open(path).names == ("part-0.tar/other.jpg",)
    index.unlink()
    index.mkdir()  # nothing can be written there: the set opens all the same
    assert len(TarShards.open(path)) == 1


def test_an_index_in_which_anything_changed_is_not_believed(
    tmp_path: Path, shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = sorted((shards.parent / "photos").rglob("*.jpg"))[:2]
    members = {"a.jpg": images[0].read_bytes(), "a.cls": b"3", "b.jpg": images[1].read_bytes(), "b.cls": b"14"}
    path = write_tar(tmp_path / "classes.tar", members)
    first, index = TarShards.open(path), tmp_path / ".classes.tar.index.json"
    assert first.labels is not None
    assert first.labels.tolist() == [3, 14]
    whole = index.read_text()
    label = whole.replace(",3]", ",4]")
    exchanged = whole.replace("a.jpg", "c.jpg").replace("b.jpg", "a.jpg").replace("c.jpg", "b.jpg")
    for changed in (label, exchanged, whole.replace('"sha256":"', '"sha256":"0'), whole.replace(",14]", ",14.0]")):
        assert changed != whole
        index.write_text(changed)
        caplog.clear()
        again = TarShards.open(path)
        assert again.names == first.names
        assert again.labels is not None
        assert (again.labels.tolist(), again.offsets.tolist()) == ([3, 14], first.offsets.tolist())
        assert index.name in caplog.text
        assert index.read_text() == whole, "made anew"


def test_a_cut_shard_is_bad_data_not_a_crash(shards: Path) -> None:
    opened = open_source(shards)
    path = shards / "part-1.tar"
    os.truncate(path, int(opened.offsets[-1] + 100) if isinstance(opened, TarShards) else 0)
    with pytest.raises(DataError, match="cut short: 100 of"):
        opened.read(len(opened) - 1)
    assert np.asarray(opened.read(0)).ndim == 3
