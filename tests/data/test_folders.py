from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import ImageFolder, LabelledFolder
from dinoskip.errors import DataError
from tests.helpers.crops import write_files


def test_classes_are_those_of_the_images_asked_for(tmp_path: Path) -> None:
    """Labels of features that were computed before a photograph was deleted and another came once moved by one."""
    write_files(tmp_path, ["a/1.jpg", "b/1.jpg", "c/1.jpg"])
    ids = LabelledFolder.open(tmp_path).ids
    write_files(tmp_path, ["a/0.jpg"])
    assert LabelledFolder.open(tmp_path).labels_of(ids[::-1]).tolist() == [2, 1, 0]
    (tmp_path / "b/1.jpg").unlink()
    with pytest.raises(DataError, match=r"b/1.jpg: is not there any more"):
        LabelledFolder.open(tmp_path).labels_of(ids)


def test_labelled_folder_numbers_classes_as_in_training(tmp_path: Path) -> None:
    write_files(tmp_path / "train", ["cat/1.jpg", "ant/1.jpg", "cat/deep/2.jpg", "bee/1.jpg"])
    write_files(tmp_path / "val", ["cat/9.jpg"])
    train = LabelledFolder.open(tmp_path / "train")
    assert train.class_names == ("ant", "bee", "cat")
    assert train.names == ("ant/1.jpg", "bee/1.jpg", "cat/1.jpg", "cat/deep/2.jpg")
    assert train.labels.dtype == np.int64
    assert train.labels.tolist() == [0, 1, 2, 2]
    assert LabelledFolder.open(tmp_path / "val", train.class_names).labels.tolist() == [2]
    write_files(tmp_path / "val", ["wasp/9.jpg"])
    with pytest.raises(DataError, match="wasp"):
        LabelledFolder.open(tmp_path / "val", train.class_names)
    write_files(tmp_path / "train", ["loose.jpg"])
    with pytest.raises(DataError, match=r"loose.jpg: lies outside a class folder"):
        LabelledFolder.open(tmp_path / "train")


def test_image_folder_paths(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "s" / "x.png")
    folder = ImageFolder.open(str(tmp_path))
    assert (len(folder), folder.ids, folder.path(0)) == (1, ("s/x.png",), tmp_path / "s" / "x.png")
