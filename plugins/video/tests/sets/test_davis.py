"""Kind davis: its layout, and what is said of files that are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.sets import open_images, open_labels
from dinoskip.data.sets.check import check
from dinoskip.data.sets.labels import LABELS
from dinoskip.errors import DataError
from dinoskip_video.labels import VIDEO
from dinoskip_video.sets.davis import DavisConfig
from tests.helpers.signatures import SIZE, blocks, dataset, judged, save, stopping


@pytest.fixture
def davis(tmp_path: Path) -> Path:
    """Two videos of three and four frames; the second is in no list."""
    root = tmp_path / "DAVIS"
    for name, count in (("bear", 3), ("camel", 4), ("other", 3)):
        for part in ("JPEGImages", "Annotations"):
            (root / part / "480p" / name).mkdir(parents=True)
        for frame in range(count):
            image, mask = (root / part / "480p" / name / f"{frame:05d}" for part in ("JPEGImages", "Annotations"))
            Image.new("RGB", (12, 8), (frame, 0, 0)).save(image.with_suffix(".jpg"))
            Image.fromarray(np.full((8, 12), frame, np.uint8)).save(mask.with_suffix(".png"))
    (root / "ImageSets" / "2017").mkdir(parents=True)
    (root / "ImageSets" / "2017" / "val.txt").write_text("bear\ncamel\n")
    return root


@pytest.mark.parametrize("above", [False, True])
def test_videos_of_a_list(davis: Path, above: bool) -> None:
    config = DavisConfig(root=str(davis.parent if above else davis))
    assert VIDEO.given_by(config)
    dataset = open_labels(VIDEO, config, "val")
    assert (dataset.name, dataset.split, [one.name for one in dataset.sequences]) == (
        "davis2017",
        "val",
        ["bear", "camel"],
    )
    assert len(dataset) == 7
    assert dataset.ids[3] == "camel/00000"
    assert dataset.path(6) == davis / "JPEGImages" / "480p" / "camel" / "00003.jpg"
    assert len(dataset.target_files) == 7
    assert [int(dataset.label(index).max()) for index in range(7)] == [0, 1, 2, 0, 1, 2, 3]
    with pytest.raises(IndexError):
        dataset.label(7)
    assert open_images(config, split="val").names[:2] == ("bear/00000.jpg", "bear/00001.jpg")


def test_what_is_missing_is_named(davis: Path) -> None:
    config = DavisConfig(root=str(davis))
    (davis / "Annotations" / "480p" / "camel" / "00002.png").unlink()
    with pytest.raises(DataError, match="camel: '00002' has no mask in Annotations"):
        open_labels(VIDEO, config, "val")
    faults: list[str] = []
    assert [one.name for one in open_labels(VIDEO, config, "val", faults=faults).sequences] == ["bear"]
    assert len(faults) == 1
    for part in ("JPEGImages", "Annotations"):
        next((davis / part / "480p" / "bear").glob("00002.*")).unlink()
    with pytest.raises(DataError, match="2 frames, 3 are needed"):
        open_labels(VIDEO, config, "val")
    with pytest.raises(DataError, match=r"train\.txt"):
        open_labels(VIDEO, config, "train")
    with pytest.raises(DataError, match="no JPEGImages/480p here"):
        open_labels(VIDEO, DavisConfig(root=str(davis / "ImageSets")), "val")


def test_a_folder_in_another_layout_is_named(tmp_path: Path) -> None:
    for part in ("JPEGImages", "ImageSets"):
        (tmp_path / part).mkdir()
    with pytest.raises(DataError, match="no JPEGImages/480p here") as failure:
        open_labels(VIDEO, DavisConfig(root=str(tmp_path)), "val")
    assert failure.value.hint == f"{tmp_path} is laid out as PASCAL VOC: use kind voc"


def test_check_counts_frames(davis: Path) -> None:
    (davis / "ImageSets" / "2017" / "train.txt").write_text("other\n")
    train, val = check(DavisConfig(root=str(davis)), sample=None)
    assert (train.found, val.found, val.expected, val.sampled, val.ok) == (3, 7, 1999, 7, False)
    assert val.lines()[0] == "davis2017 video val: 7 frames of 1,999 expected, 7 read: differs from the published"
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(davis / "Annotations" / "480p" / "bear" / "00001.png")
    faults = check(DavisConfig(root=str(davis)), sample=None)[1].faults
    assert len(faults) == 1
    assert "mask is 3×3 pixels, its frame 12×8" in faults[0]


def test_davis_2016(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / f"JPEGImages/480p/bear/{number:05}.jpg", np.zeros((*SIZE, 3), np.uint8))
        save(tmp_path / f"Annotations/480p/bear/{number:05}.png", blocks([0, 255], number))
    (tmp_path / "ImageSets/2017").mkdir(parents=True)
    (tmp_path / "ImageSets/2017/val.txt").write_text("bear\n")
    found = judged("video", ["val"], kind="davis", root=str(tmp_path))
    assert stopping(found) == [("refused", "davis-numbering")]
    assert "numbering=2016" in found[0].remedy
    config = dataset(kind="davis", root=str(tmp_path), numbering="2016")
    assert not judged("video", ["val"], **config.model_dump())
    assert np.unique(open_labels(LABELS["video"], config, "val").label(0)).tolist() == [0, 1]
