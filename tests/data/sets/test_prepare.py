from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dinoskip.cli import main
from dinoskip.data.archives import md5_file
from dinoskip.data.sets.coco_stuff import CocoStuffConfig
from dinoskip.data.sets.kind import Archives, Published
from dinoskip.data.sets.prepare import missing, prepare
from dinoskip.errors import DataError
from dinoskip.io.images import read_mask
from tests.helpers.archives import make_zip, tree


def test_published_archives_are_checked_and_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "coco"
    maps = {"train2017/1.png": b"1", "val2017/2.png": b"2"}
    stuff = make_zip(tmp_path / "stuffthingmaps_trainval2017.zip", maps)
    renamed = make_zip(tmp_path / "maps.zip", maps)
    photos = make_zip(tmp_path / "photos.zip", {"train2017/1.jpg": b"x"})
    assert [line[:7] for line in missing("coco_stuff", out)] == ["missing"] * 3
    lines = prepare("coco_stuff", [stuff, renamed, photos], out)
    assert all("not checked" in line for line in lines)
    assert tree(out) == {
        "stuffthingmaps/train2017/1.png": b"1",
        "stuffthingmaps/val2017/2.png": b"2",
        "train2017/1.jpg": b"x",
    }
    assert [line.split(": ")[1] for line in missing("coco_stuff", out)] == ["val2017"]
    false = make_zip(tmp_path / "val2017.zip", {"val2017/2.jpg": b"x"})
    with pytest.raises(DataError, match=r"its md5 is .*, that of the published file 442b8da7639aecaf257c1dceb8ba8c80"):
        prepare("coco_stuff", [false], out)
    entry = CocoStuffConfig.archives.published[1]
    true = Published(entry.url, entry.gives, md5_file(false))
    monkeypatch.setattr(CocoStuffConfig, "archives", Archives(published=(true,)))
    assert prepare("coco_stuff", [false], out) == ["val2017.zip: 1 files, md5 as published"]
    assert missing("coco_stuff", out) == []


def test_lists_and_augmented_masks(tmp_path: Path) -> None:
    out = tmp_path / "data"
    (tmp_path / "trainaug.txt").write_text("a\n")
    masks = make_zip(tmp_path / "SegmentationClassAug.zip", {"SegmentationClassAug/a.png": b"x"})
    assert any("trainaug" in line for line in missing("voc", out))
    prepare("voc", [masks, tmp_path / "trainaug.txt"], out)
    assert tree(out / "VOCdevkit" / "VOC2012") == {
        "SegmentationClassAug/a.png": b"x", "ImageSets/Segmentation/trainaug.txt": b"a\n",
    }  # fmt: skip
    assert not any("trainaug" in line for line in missing("voc", out))
    (tmp_path / "trainaug.txt").write_text("b\n")
    with pytest.raises(DataError, match="differs from"):
        prepare("voc", [tmp_path / "trainaug.txt"], out)
    (tmp_path / "coco_20k_filenames.txt").write_text("train2014/a.jpg\n")
    with pytest.raises(DataError, match="its md5 is"):
        prepare("coco20k", [tmp_path / "coco_20k_filenames.txt"], out)
    with pytest.raises(DataError, match="no such file"):
        prepare("voc", [tmp_path / "none.tar"], out)


def test_the_command_says_what_is_missing_and_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "ade")
    assert main(["data", "prepare", "ade20k", "--out", out]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("missing: ADEChallengeData2016/images/training, ")
    assert "ADEChallengeData2016.zip (md5 7328b3957e407ddae1d3cbf487f149ef)" in line
    names = (f"ADEChallengeData2016/{part}/1" for part in ("images/training", "annotations/validation"))
    path = make_zip(tmp_path / "part.zip", dict.fromkeys(names, b"x"))
    assert main(["data", "prepare", "ade20k", str(path), "--out", out]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "part.zip: 2 files, md5 not known, not checked",
        f"next: dinoskip data check ade20k --data {out}",
    ]


def test_sbd_is_merged_with_voc(tmp_path: Path) -> None:
    """VOC has train a, b and val c; SBD a, c, d: trainaug is a, b by VOC's masks and d by SBD's."""
    out, sbd = tmp_path / "data", tmp_path / "benchmark_RELEASE" / "dataset"
    folder = out / "VOCdevkit" / "VOC2012"
    for part in (folder / "SegmentationClass", folder / "ImageSets" / "Segmentation", sbd / "cls"):
        part.mkdir(parents=True)
    for name in "abc":
        Image.fromarray(np.full((2, 3), 255, np.uint8)).save(folder / "SegmentationClass" / f"{name}.png")
    (folder / "ImageSets" / "Segmentation" / "train.txt").write_text("a\nb\n")
    (folder / "ImageSets" / "Segmentation" / "val.txt").write_text("c\n")
    for name in "acd":
        segmentation = np.array([[0, 1, 20], [7, 0, 0]], np.uint8)
        content = {"Boundaries": np.zeros(1), "Segmentation": segmentation, "CategoriesPresent": np.array([1])}
        savemat(sbd / "cls" / f"{name}.mat", {"GTcls": content})
    (sbd / "train.txt").write_text("a\nc\n")
    (sbd / "val.txt").write_text("d\n")
    with tarfile.open(tmp_path / "sbd.tgz", "w:gz") as archive:
        archive.add(tmp_path / "benchmark_RELEASE", "benchmark_RELEASE")
    assert any("benchmark.tgz" in line for line in missing("voc", out))
    lines = prepare("voc", [tmp_path / "sbd.tgz"], out)
    assert lines[1].endswith(
        "SegmentationClassAug: 3 masks, 2 of VOC2012 and the others of SBD; trainaug.txt names them"
    )
    assert not any("benchmark.tgz" in line for line in missing("voc", out))
    masks = {path.stem: read_mask(path).tolist() for path in (folder / "SegmentationClassAug").iterdir()}
    white = [[255] * 3] * 2
    assert masks == {"a": white, "b": white, "d": [[0, 1, 20], [7, 0, 0]]}
    assert (folder / "ImageSets" / "Segmentation" / "trainaug.txt").read_text() == "a\nb\nd\n"
    assert prepare("voc", [], out) == []


@pytest.mark.parametrize("content", [b"no", b""])
def test_a_damaged_mask_of_sbd_is_named_and_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    folder, sbd = tmp_path / "VOCdevkit" / "VOC2012", tmp_path / "benchmark_RELEASE" / "dataset"
    for part in (folder / "SegmentationClass", folder / "ImageSets" / "Segmentation", sbd / "cls"):
        part.mkdir(parents=True)
    for split in ("train", "val"):
        (folder / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("c\n")
        (sbd / f"{split}.txt").write_text("d\n")
    (sbd / "cls" / "d.mat").write_bytes(content)
    before = tree(tmp_path)
    with pytest.raises(DataError, match=r"d.mat: not a readable mask of SBD"):
        prepare("voc", [], tmp_path)
    assert tree(tmp_path) == before
