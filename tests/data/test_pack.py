from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip import cli
from dinoskip.data import ImageFolder
from dinoskip.data import pack as module
from dinoskip.data.pack import PackConfig, pack
from dinoskip.data.shards import TarShards, open_source
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_json, verify_manifest
from dinoskip.training import pretrain
from tests.helpers.tiny import make_images, tiny_job


@pytest.fixture
def folder(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> ImageFolder:
    """Twelve photographs of 60-71 × 68-90 pixels; packed five a shard."""
    monkeypatch.setattr(module, "PER_SHARD", 5)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(photo_folder / "small.png")
    Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(photo_folder / "small.jpg")
    return ImageFolder.open(photo_folder)


def test_images_are_resized_never_enlarged_and_the_record_says_so(folder: ImageFolder, tmp_path: Path) -> None:
    out = pack(folder, tmp_path / "packed", PackConfig(short_side=48, quality=80), threads=2)
    assert verify_manifest(out) == []
    packed = open_source(out)
    assert isinstance(packed, TarShards)
    assert packed.shards == tuple(f"shard-{number:05}.tar" for number in range(3))
    assert len(packed) == 14
    for index, name in enumerate(folder.names):
        image, before = packed.read(index), folder.read(index)
        if name == "small.jpg":
            assert packed.encoded(index) == folder.path(index).read_bytes()
        elif name == "small.png":
            assert packed.names[index] == "shard-00001.tar/small-9.jpg"
            assert image.shape == before.shape
        else:
            assert min(image.shape[:2]) == 48
            resized = Image.fromarray(before).resize(image.shape[1::-1], Image.Resampling.BICUBIC)
            stream = io.BytesIO()
            resized.save(stream, "JPEG", quality=80, subsampling="4:2:0")
            assert packed.encoded(index) == stream.getvalue()
    record = packed.record["packed"]
    assert record["source"] == folder.fingerprint()
    assert (record["short_side"], record["quality"], record["codec"], record["images"]) == (48, 80, "jpeg", 14)
    assert folder.record == {}
    assert pack(packed, tmp_path / "twice", PackConfig(short_side=40)).exists()
    assert read_json(tmp_path / "twice" / "pack.json")["changed_before"]["packed"] == record


def test_an_interrupted_packing_goes_on_and_gives_the_same(
    folder: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = pack(folder, tmp_path / "straight", PackConfig(short_side=48))
    real, calls = module._write_shard, []

    def stopped(shard: Path, *rest: object) -> None:
        calls.append(shard.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(shard, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_write_shard", stopped)
    out = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        pack(folder, out, PackConfig(short_side=48))
    with pytest.raises(DataError, match="packing was not finished"):
        open_source(out)
    with pytest.raises(ConfigError, match="short_side 48 → 64"):
        pack(folder, out, PackConfig(short_side=64))
    pack(folder, out, PackConfig(short_side=48))
    assert calls == ["shard-00000.tar", "shard-00001.tar", "shard-00001.tar", "shard-00002.tar"]
    assert read_json(out / "MANIFEST.json") == read_json(straight / "MANIFEST.json")
    pack(folder, out, PackConfig(short_side=48))
    assert len(calls) == 4  # finished: nothing is done again


def test_bad_images_are_listed_and_more_than_one_percent_refused(
    folder: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = folder.path(6)
    bad.write_bytes(bad.read_bytes()[:500])
    with pytest.raises(DataError, match=f"1 of 14 images cannot be read, more than 1%: {folder.names[6]}"):
        pack(folder, tmp_path / "refused", PackConfig(short_side=48))
    monkeypatch.setattr(module, "BAD_SHARE", 0.1)
    out = pack(folder, tmp_path / "packed", PackConfig(short_side=48))
    record = read_json(out / "pack.json")
    assert list(record["left_out"]) == [folder.names[6]]
    assert str(bad) in record["left_out"][folder.names[6]]
    assert len(open_source(out)) == record["images"] == 13


@pytest.mark.parametrize("numbered", [True, False])
def test_labels_survive(photo_folder: Path, tmp_path: Path, numbered: bool) -> None:
    image = (photo_folder / "p01.jpg").read_bytes()
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        members = {"x.jpg": image, "x.cls": b"7", "y.jpg": image, "y.cls": b"2"}
        for name, content in (members if numbered else {"owl/1.jpg": image, "elk/1.jpg": image}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    source = open_source(tmp_path / "a.tar")
    packed = open_source(pack(source, tmp_path / "packed", PackConfig(short_side=32)))
    assert isinstance(source, TarShards)
    assert isinstance(packed, TarShards)
    assert source.labels is not None
    assert packed.labels is not None
    assert packed.labels.tolist() == source.labels.tolist()
    assert packed.class_names == source.class_names


def test_the_command(folder: ImageFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "packed"
    command = ["data", "pack", "--data", str(folder.root), str(out)]
    assert cli.main([*command, "--short-side", "4"]) == 2
    assert "short_side" in capsys.readouterr().err
    assert cli.main([*command, "--short-side", "48"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    assert cli.main(["data", "pack", "--data", str(folder.root), str(tmp_path / "other")]) == 2


def test_a_run_on_packed_pixels_says_so(tmp_path: Path) -> None:
    folder = ImageFolder.open(make_images(tmp_path / "images"))
    packed = open_source(pack(folder, tmp_path / "packed", PackConfig(short_side=32)))
    job = tiny_job()
    pretrain(job, packed, tmp_path / "run", device="cpu")
    data = read_json(tmp_path / "run" / "config.json")["data"]
    assert data["packed"]["short_side"] == 32
    assert data["packed"]["source"] == folder.fingerprint()
    with pytest.raises(ConfigError, match="data"):
        pretrain(job, folder, tmp_path / "run", device="cpu")


def test_names_that_differ_in_their_suffix_alone_are_told_apart_from_all_others(tmp_path: Path) -> None:
    picture = Image.new("RGB", (40, 40))
    (tmp_path / "set").mkdir()
    for name in ("a-2.jpg", "a.jpg", "a.png"):  # the third, a-2 by its number, is the first one's name
        picture.save(tmp_path / "set" / name)
    packed = open_source(pack(ImageFolder.open(tmp_path / "set"), tmp_path / "packed", PackConfig(short_side=32)))
    assert len(set(packed.names)) == 3
