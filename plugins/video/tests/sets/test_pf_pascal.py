"""Kind pf_pascal: pairs of a CSV list, and what is said of lines that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.check import check
from dinoskip.data.sets.prepare import prepare
from dinoskip.errors import DataError
from dinoskip_video.labels import CORRESPONDENCE
from dinoskip_video.sets.pf_pascal import PfPascalConfig

HEADER = "source_image,target_image,class,XA,YA,XB,YB"
LINE = "PF-dataset-PASCAL/JPEGImages/a.jpg,PF-dataset-PASCAL/JPEGImages/b.jpg,8,1.5;2,3;4,5;6,7;8.25"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "PF-dataset-PASCAL"
    (root / "JPEGImages").mkdir(parents=True)
    Image.new("RGB", (20, 10)).save(root / "JPEGImages" / "a.jpg")
    Image.new("RGB", (30, 40)).save(root / "JPEGImages" / "b.jpg")
    (root / "test_pairs_pf_pascal.csv").write_text(f"{HEADER}\n{LINE}\n")
    return root


def test_a_list_of_pairs(folder: Path) -> None:
    dataset = open_labels(CORRESPONDENCE, PfPascalConfig(root=str(folder.parent)), "test")
    (pair,) = dataset.pairs
    assert dataset.ids == ("a.jpg", "b.jpg")
    assert (pair.category, pair.extent) == ("cat", 40)  # VOC's eighth class; the longer side of the target image
    np.testing.assert_array_equal(pair.source_points, [[1.5, 3], [2, 4]])
    np.testing.assert_array_equal(pair.target_points, [[5, 7], [6, 8.25]])
    assert dataset.target_files == (folder / "test_pairs_pf_pascal.csv",)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((",8,", ",21,"), "not a pair of PF-PASCAL"),
        (("5;6,7;8.25", "5;x,7;8.25"), "not a pair of PF-PASCAL"),
        (("5;6,7;8.25", "5;6;7,7;8;9"), "2 points in one image, 3 in the other"),
        (("b.jpg", "c.jpg"), "c.jpg: no such image, .*csv:2 names it"),
        ((LINE, "a.jpg"), "csv:2: not a pair"),
    ],
)
def test_bad_lines_are_named(folder: Path, change: tuple[str, str], text: str) -> None:
    (folder / "test_pairs_pf_pascal.csv").write_text(f"{HEADER}\n{LINE.replace(*change)}\n")
    config, faults = PfPascalConfig(root=str(folder)), list[str]()
    with pytest.raises(DataError, match=text):
        open_labels(CORRESPONDENCE, config, "test")
    assert open_labels(CORRESPONDENCE, config, "test", faults=faults).pairs == ()
    assert len(faults) == 1


def test_check_and_prepare(folder: Path, tmp_path: Path) -> None:
    (row,) = check(PfPascalConfig(root=str(folder)))  # the list of val is not there, and not needed
    assert (row.split, row.found, row.expected) == ("test", 1, 299)
    own = tmp_path / "val_pairs_pf_pascal.csv"
    own.write_text(f"{HEADER}\n{LINE}\n{LINE}\n")
    assert prepare("pf_pascal", [own], tmp_path)[0].startswith("val_pairs_pf_pascal.csv: copied to")
    assert [one.found for one in check(PfPascalConfig(root=str(folder)))] == [2, 1]
