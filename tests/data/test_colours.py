"""Masks in colours, with endings in their names, in other formats, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.colours import read_colours
from dinoskip.data.segmentation import voc_palette
from dinoskip.data.sets import MasksConfig, VocConfig, open_images, open_labels
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.errors import DataError

COLOURS = np.array([[0, 0, 0], [250, 50, 83], [52, 209, 183]], np.uint8)
CLASSES = np.arange(48, dtype=np.uint8).reshape(6, 8) % 3
LABELMAP = "# label:color_rgb:parts:actions\r\nbackground:0,0,0::\r\ncat:250,50,83::\r\ndog:52,209,183::\r\n"
LISTS = {
    "labelmap.txt": LABELMAP,
    "label_colors.txt": "0 0 0\tbackground\n250 50 83\tcat\n52 209 183\tdog\n",
    "class_dict.csv": "name,r,g,b\nbackground,0,0,0\ncat,250,50,83\ndog,52,209,183\n",
}


def layout(
    root: Path, images: str = "images/val", masks: str = "masks/val", ending: str = "", form: str = "png"
) -> Path:
    """Three photographs; masks in colours, named with an ending and in a form."""
    for folder in (images, masks):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for number in range(3):
        Image.fromarray(np.full((6, 8, 3), 40 * number, np.uint8)).save(root / images / f"{number}.jpg")
        Image.fromarray(COLOURS[CLASSES]).save(root / masks / f"{number}{ending}.{form}")
    return root


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_masks_in_colours_are_read_by_the_lists_of_tools(tmp_path: Path, name: str, mark: bytes) -> None:
    layout(tmp_path)
    (tmp_path / name).write_bytes(mark + LISTS[name].encode())
    for config in (MasksConfig(root=str(tmp_path)), MasksConfig(root=str(tmp_path), classes=name)):
        dataset = open_labels(SEGMENTATION, config, "val")
        assert dataset.class_names == ("background", "cat", "dog")
        assert (dataset.label(1) == CLASSES).all()


def test_palette_masks_are_read_by_their_colours_and_grey_ones_by_their_numbers(tmp_path: Path) -> None:
    layout(tmp_path)
    (tmp_path / "labelmap.txt").write_text(LABELMAP)
    other_order = np.array([2, 0, 1], np.uint8)  # of the palette, not of the list
    palette = Image.fromarray(other_order[CLASSES], "P")
    palette.putpalette(COLOURS[np.argsort(other_order)].tobytes())
    palette.save(tmp_path / "masks/val/0.png")
    Image.fromarray(CLASSES).save(tmp_path / "masks/val/1.png")
    dataset = open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path)), "val")
    for index in range(3):
        assert (dataset.label(index) == CLASSES).all()


def test_void_is_not_scored_and_a_foreign_colour_is_named(tmp_path: Path) -> None:
    layout(tmp_path)
    (tmp_path / "labelmap.txt").write_text(LABELMAP.replace("background", "void"))
    dataset = open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path)), "val")
    assert dataset.class_names == ("cat", "dog")
    assert (dataset.label(0) == np.array([255, 0, 1], np.uint8)[CLASSES]).all()
    picture = COLOURS[CLASSES]
    picture[2, 3] = (1, 2, 3)
    Image.fromarray(picture).save(tmp_path / "masks/val/0.png")
    with pytest.raises(DataError, match=r"0\.png: colour 1, 2, 3 \(1 pixels\)"):
        dataset.label(0)


@pytest.mark.parametrize(
    "text",
    [
        "a:0,0,0::\nb:0,0,0::\n",
        "a:0,0,0::\na:1,0,0::\n",
        "a:0,0,256::\n",
        "a:0,0,0::\nb 1 2 3\n",
        "void:0,0,0::\n",
    ],
)
def test_lists_of_colours_are_checked(tmp_path: Path, text: str) -> None:
    (tmp_path / "labelmap.txt").write_text(text)
    with pytest.raises(DataError, match=r"labelmap\.txt"):
        read_colours(tmp_path / "labelmap.txt")


@pytest.mark.parametrize("text", ["background\ncat\n", "one\n", "background\na:b\ndog\n", "1 2 3\n4 5 6\n", ""])
def test_lists_of_names_have_no_colours(tmp_path: Path, text: str) -> None:
    (tmp_path / "classes.txt").write_text(text)
    assert read_colours(tmp_path / "classes.txt") is None


def test_a_voc_folder_of_cvat(tmp_path: Path) -> None:
    layout(tmp_path, "JPEGImages", "SegmentationClass")
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/default.txt").write_text("0\n1\n2\n")
    (tmp_path / "labelmap.txt").write_text(LABELMAP)
    dataset = open_labels(SEGMENTATION, VocConfig(root=str(tmp_path)), "default")
    assert dataset.class_names == ("background", "cat", "dog")
    assert (dataset.label(2) == CLASSES).all()


@pytest.mark.parametrize("ending", ["", "_mask", "_seg", "_L"])
@pytest.mark.parametrize("form", ["png", "tif", "bmp"])
@pytest.mark.parametrize("beside", [False, True])
def test_names_of_masks_have_endings_and_formats(tmp_path: Path, ending: str, form: str, beside: bool) -> None:
    if beside and not ending and form != "png":
        return  # which of two extensions is the mask's, nothing says
    layout(tmp_path, "val", "val" if beside else "val_labels", ending, form)
    (tmp_path / "class_dict.csv").write_text(LISTS["class_dict.csv"])
    config = MasksConfig(root=str(tmp_path), images="{split}", masks="{split}" if beside else "{split}_labels")
    dataset = open_labels(SEGMENTATION, config, "val")
    assert dataset.ids == ("0", "1", "2")
    assert (dataset.label(0) == CLASSES).all()
    assert [Path(name).suffix for name in open_images(config, split="val").names] == [".jpg"] * 3


def test_masks_of_equal_names_come_before_those_with_an_ending(tmp_path: Path) -> None:
    layout(tmp_path)
    for number in range(3):
        Image.fromarray(COLOURS[CLASSES]).save(tmp_path / f"masks/val/{number}_mask.png")
    (tmp_path / "labelmap.txt").write_text(LABELMAP)
    faults: list[str] = []
    dataset = open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path)), "val", faults=faults)
    assert [path.name for path in dataset.label_paths] == ["0.png", "1.png", "2.png"]
    assert len(faults) == 3
    own = open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path), mask_ending="_mask"), "val", faults=[])
    assert [path.name for path in own.label_paths] == ["0_mask.png", "1_mask.png", "2_mask.png"]


def test_masks_with_loss_are_refused_by_name_and_by_content(tmp_path: Path) -> None:
    layout(tmp_path, form="jpg")
    (tmp_path / "labelmap.txt").write_text(LABELMAP)
    config = MasksConfig(root=str(tmp_path))
    with pytest.raises(DataError, match="JPEG"):
        open_labels(SEGMENTATION, config, "val")
    for path in (tmp_path / "masks/val").iterdir():
        path.rename(path.with_suffix(".png"))
    with pytest.raises(DataError, match=r"0\.png: .*JPEG"):
        open_labels(SEGMENTATION, config, "val").label(0)
    (tmp_path / "labelmap.txt").unlink()
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    for number in range(3):
        Image.fromarray(CLASSES).save(tmp_path / f"masks/val/{number}.png", "JPEG")
    with pytest.raises(DataError, match=r"0\.png: .*JPEG"):
        open_labels(SEGMENTATION, config, "val").label(0)


def test_colours_without_a_list_are_refused_with_what_reads_them(tmp_path: Path) -> None:
    layout(tmp_path)
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    with pytest.raises(DataError, match="RGB") as caught:
        open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path)), "val").label(0)
    assert "labelmap.txt" in str(caught.value.hint)


def test_voc_masks_with_the_colours_of_voc(tmp_path: Path) -> None:
    """A mask in VOC's colours and its index form are one, by a list with these colours."""
    layout(tmp_path)
    lines = "".join(f"c{number}:{','.join(map(str, voc_palette()[number]))}::\n" for number in range(3))
    (tmp_path / "labelmap.txt").write_text(lines)
    border = voc_palette()[np.where(CLASSES == 2, 255, CLASSES)]
    Image.fromarray(border).save(tmp_path / "masks/val/0.png")
    dataset = open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path)), "val")
    assert (dataset.label(0) == np.where(CLASSES == 2, 255, CLASSES)).all()
