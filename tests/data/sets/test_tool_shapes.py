"""Labels as tools write them: YOLO, Supervisely, CVAT, XMLs beside pictures, Mapillary, LVIS; drawn by each test."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.recognise import recognise
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.coco_json import CocoDetection
from dinoskip.data.sets.labels import DETECTION, SEGMENTATION
from dinoskip.data.tool_outlines import MAX_PICTURE, unpacked_picture
from dinoskip.errors import DataError
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.settings.config import RawConfig, validate

HEIGHT, WIDTH = 20, 40


def picture(path: Path, exif: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    tags = image.getexif()
    tags[0x0112] = exif
    image.save(path, exif=tags)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def config_of(settings: Any) -> Any:
    return validate(OneDataset, RawConfig({"dataset": dict(settings)})).dataset


def opened(root: Path, split: str = "train") -> Any:
    """Open a folder with the settings that its recognition gives."""
    settings = recognise(root).settings
    assert settings is not None
    return open_labels(DETECTION, config_of(settings), split)


def of_lines(root: Path, text: str, yaml: str = "names: [cat, dog]\n") -> Path:
    for name in ("a", "b"):
        picture(root / "images" / "train" / f"{name}.jpg")
    write(root / "labels" / "train" / "a.txt", text)
    write(root / "data.yaml", yaml)
    return root


def test_yolo_boxes(tmp_path: Path) -> None:
    data = opened(of_lines(tmp_path, "1 0.5 0.5 0.25 0.5\n0 0.1 0.2 0.1 0.2\n"))
    assert (data.class_names, data.ids, len(data.objects(1))) == (("cat", "dog"), ("a.jpg", "b.jpg"), 0)
    assert data.boxes(0).tolist() == [[15, 5, 25, 15], [2, 2, 6, 6]]
    assert data.box_labels(0) == ["dog", "cat"]
    assert not isinstance(data, CocoDetection)  # boxes alone are no outlines
    assert [path.name for path in data.target_files] == ["a.txt"]


@pytest.mark.parametrize("names", ["names: {0: cat, 1: dog}\n", "names: ['cat', 'dog']\nnc: 2\n"])
def test_yolo_polygons_and_turned_boxes(tmp_path: Path, names: str) -> None:
    data = opened(of_lines(tmp_path, "0 .25 .25 .75 .25 .75 .75 .25 .75\n1 0.5 0.5 0.5 0.5\n", names))
    assert isinstance(data, CocoDetection)
    assert data.boxes(0).tolist() == [[10, 5, 30, 15], [10, 5, 30, 15]]
    first, second = data.masks(0)
    assert (first == second).all()
    assert first.sum() == 200
    assert [entry["category_id"] for entry in data.entries(0)] == [1, 2]
    part = data.part([1])
    assert (part.ids, part.masks(0)) == (("b.jpg",), [])


def test_yolo_poses_are_boxes(tmp_path: Path) -> None:
    root = of_lines(tmp_path, "0 .5 .5 .5 .5 .4 .4 2 .6 .6 1\n", "names: [person]\nkpt_shape: [2, 3]\n")
    assert opened(root).boxes(0).tolist() == [[10, 5, 30, 15]]


def test_roboflow_nesting_and_valid(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        for name in ("a", "b"):
            picture(tmp_path / split / "images" / f"{name}{split}.jpg")
            write(tmp_path / split / "labels" / f"{name}{split}.txt", "0 .5 .5 .5 .5\n")
    write(tmp_path / "data.yaml", "train: ../train/images\nval: ../valid/images\nnames: ['cat']\n")
    assert opened(tmp_path, "val").ids == ("avalid.jpg", "bvalid.jpg")


@pytest.mark.parametrize("line", [
    "2 .5 .5 .5 .5", "0.5 .5 .5 .5 .5", "0 .5 .5 .5", "0 .5 .5 .5 .5 .9", "0 nan .5 .5 .5", "0 1e9 .5 .5 .5",
    "x .5 .5 .5 .5",
    "0 .9 .5 .5 .5", "-1 .5 .5 .5 .5", "inf .5 .5 .5 .5",
])  # fmt: skip
def test_yolo_lines_that_are_none(tmp_path: Path, line: str) -> None:
    of_lines(tmp_path, line + "\n")
    data = open_labels(DETECTION, config_of({"kind": "yolo", "root": str(tmp_path)}), "train")
    with pytest.raises(DataError, match=r"a\.txt") as caught:
        data.objects(0)
    assert "\n" not in str(caught.value)


def test_yolo_labels_without_an_image(tmp_path: Path) -> None:
    write(of_lines(tmp_path, "0 .5 .5 .5 .5\n") / "labels/train/z.txt", "0 .5 .5 .5 .5\n")
    config = config_of({"kind": "yolo", "root": str(tmp_path)})
    with pytest.raises(DataError, match=r"z\.txt"):
        open_labels(DETECTION, config, "train")
    faults: list[str] = []
    assert len(open_labels(DETECTION, config, "train", faults=faults)) == 2
    assert len(faults) == 1


def packed(region: np.ndarray) -> str:
    stream = io.BytesIO()
    Image.fromarray(region.astype(np.uint8) * 255).save(stream, "PNG")
    return base64.b64encode(zlib.compress(stream.getvalue())).decode()


def supervisely(root: Path, objects: list[Any]) -> Path:
    write(root / "meta.json", json.dumps({"classes": [{"title": "cat"}, {"title": "dog"}]}))
    picture(root / "train" / "img" / "a.jpg")
    content = {"size": {"height": HEIGHT, "width": WIDTH}, "objects": objects}
    write(root / "train" / "ann" / "a.jpg.json", json.dumps(content))
    return root


def drawn(kind: str, exterior: Any, interior: Any = (), title: str = "dog") -> dict[str, Any]:
    return {"classTitle": title, "geometryType": kind, "points": {"exterior": exterior, "interior": list(interior)}}


def test_supervisely_shapes(tmp_path: Path) -> None:
    square, hole = [[10, 4], [30, 4], [30, 16], [10, 16]], [[15, 8], [25, 8], [25, 12], [15, 12]]
    region = {"origin": [3, 2], "data": packed(np.eye(6) > 0)}
    bitmap = {"classTitle": "cat", "geometryType": "bitmap", "bitmap": region}
    objects = [drawn("rectangle", [[1, 1], [4, 5]]), drawn("polygon", square, [hole]), bitmap, drawn("line", [[1, 1]])]
    data = opened(supervisely(tmp_path, objects))
    assert data.boxes(0).tolist() == [[1, 1, 5, 6], [10, 4, 30, 16], [3, 2, 9, 8]]
    box, holed, diagonal = data.masks(0)
    assert (box.sum(), holed.sum(), diagonal.sum()) == (20, 20 * 12 - 10 * 4, 6)
    assert diagonal[2:8, 3:9].diagonal().all()


@pytest.mark.parametrize("wrong", [
    drawn("polygon", [[1, 1], [2, 2], [float("nan"), 3]]), drawn("rectangle", [[1, 1], [400, 5]]),
    drawn("polygon", "abc"), drawn("rectangle", [[1, 1], [2, 2]], title="bird"), {"geometryType": "polygon"}, 7,
    {"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"origin": [0, 0], "data": "????"}},
    {"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"origin": [0, 0], "data": packed(np.ones((90, 90)))}},
])  # fmt: skip
def test_supervisely_shapes_that_are_none(tmp_path: Path, wrong: Any) -> None:
    data = open_labels(
        DETECTION, config_of({"kind": "supervisely", "root": str(supervisely(tmp_path, [wrong]))}), "train"
    )
    with pytest.raises(DataError, match=r"a\.jpg\.json"):
        data.objects(0)


def test_a_bitmap_that_unpacks_to_more_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="more than"):
        unpacked_picture(base64.b64encode(zlib.compress(bytes(MAX_PICTURE + 1))).decode())


CVAT = (
    "<annotations><meta><task><labels><label><name>dog</name></label><label><name>cat</name></label></labels></task>"
    '</meta><image id="0" name="a.jpg" width="40" height="20">{}</image><image id="1" name="b.jpg" width="40" '
    'height="20"></image></annotations>'
)


def cvat(root: Path, shapes: str) -> Any:
    for name in ("a", "b"):
        picture(root / "images" / f"{name}.jpg")
    write(root / "annotations.xml", CVAT.format(shapes))
    return config_of({"kind": "cvat", "root": str(root)})


def test_cvat_shapes(tmp_path: Path) -> None:
    config = cvat(
        tmp_path,
        '<box label="cat" xtl="1.2" ytl="2" xbr="10" ybr="12"/><box label="cat" xtl="10" ytl="4" xbr="20" ybr="10" '
        'rotation="90"/><polygon label="dog" points="10,4;30,4;30,16;10,16"/><points label="dog" points="1,2"/>'
        '<mask label="dog" rle="1,2,2,1" left="5" top="6" width="3" height="2"/>',
    )
    assert recognise(tmp_path).layout.kind == "cvat"
    data: Any = open_labels(DETECTION, config, "all")
    assert (data.class_names, data.ids) == (("dog", "cat"), ("images/a.jpg", "images/b.jpg"))
    assert data.boxes(0).tolist() == [[1, 2, 10, 12], [12, 2, 18, 12], [10, 4, 30, 16], [5, 6, 8, 8]]
    masks = data.masks(0)
    assert masks[3][6:8, 5:8].tolist() == [[False, True, True], [False, False, True]]
    assert (masks[2].sum(), len(data.objects(1))) == (240, 0)


@pytest.mark.parametrize("shape", [
    '<box label="cat" xtl="1" ytl="2" xbr="inf" ybr="12"/>', '<box label="bird" xtl="1" ytl="2" xbr="3" ybr="4"/>',
    '<box label="cat" xtl="1"/>', '<polygon label="cat" points="1,2,3"/>',
    '<box label="cat" xtl="9" ytl="2" xbr="3" ybr="4"/>',
    '<mask label="cat" rle="1,x" left="0" top="0" width="3" height="2"/>', "<image", "<a>" * 100,
])  # fmt: skip
def test_cvat_shapes_that_are_none(tmp_path: Path, shape: str) -> None:
    config = cvat(tmp_path, shape)
    with pytest.raises(DataError, match=r"annotations\.xml"):
        open_labels(DETECTION, config, "all").objects(0)


@pytest.mark.parametrize("rle", ["9999999999", "-1,3", "1,1,1,1,99"])
def test_cvat_runs_beyond_their_box(tmp_path: Path, rle: str) -> None:
    config = cvat(tmp_path, f'<mask label="cat" rle="{rle}" left="0" top="0" width="3" height="2"/>')
    with pytest.raises(DataError, match="runs cover"):
        open_labels(DETECTION, config, "all").masks(0)  # type: ignore[attr-defined]


def test_cvat_declares_no_document_type(tmp_path: Path) -> None:
    config = cvat(tmp_path, "")
    write(tmp_path / "annotations.xml", '<!DOCTYPE a [<!ENTITY b "c">]>' + CVAT.format(""))
    with pytest.raises(DataError, match="document type"):
        open_labels(DETECTION, config, "all")


def test_cvat_names_that_point_outside(tmp_path: Path) -> None:
    config = cvat(tmp_path, "")
    write(tmp_path / "annotations.xml", CVAT.format("").replace("b.jpg", "../b.jpg"))
    with pytest.raises(DataError, match="points outside"):
        open_labels(DETECTION, config, "all")


def test_xmls_beside_pictures(tmp_path: Path) -> None:
    box = "<bndbox><xmin>3</xmin><ymin>4</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    xml = f"<annotation><object><name>{{}}</name>{box}</object></annotation>"
    for split, name in (("train", "dog"), ("valid", "cat")):
        picture(tmp_path / split / "a.jpg")
        write(tmp_path / split / "a.xml", xml.format(name))
    data = opened(tmp_path, "val")
    assert (data.class_names, data.box_labels(0), data.boxes(0).tolist()) == (("cat", "dog"), ["cat"], [[2, 3, 9, 8]])
    (tmp_path / "valid" / "a.xml").rename(tmp_path / "valid" / "b.xml")
    with pytest.raises(DataError, match=r"a\.jpg"):
        open_labels(DETECTION, config_of({"kind": "voc_xml", "root": str(tmp_path)}), "val")


@pytest.mark.parametrize("upright", [True, False])
def test_boxes_of_a_turned_photograph(tmp_path: Path, upright: bool) -> None:
    root = of_lines(tmp_path, "0 .25 .25 .5 .5\n")
    picture(root / "images/train/a.jpg", exif=3)
    orientation = "upright" if upright else "stored"
    config = config_of({"kind": "yolo", "root": str(root), "label_orientation": orientation})
    expected = [[0, 0, 20, 10]] if upright else [[20, 10, 40, 20]]
    assert open_labels(DETECTION, config, "train").boxes(0).tolist() == expected


def test_mapillary(tmp_path: Path) -> None:
    labels = [{"name": "a--sky", "readable": "Sky"}, {"name": "b", "readable": "Ego", "evaluate": False}, {"name": "c"}]
    write(tmp_path / "config_v1.2.json", json.dumps({"labels": labels}))
    for split in ("training", "validation"):
        picture(tmp_path / split / "images" / "a.jpg")
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        mask[5:] = 1
        mask[15:] = 2
        (tmp_path / split / "v1.2" / "labels").mkdir(parents=True)
        Image.fromarray(mask).save(tmp_path / split / "v1.2" / "labels" / "a.png")
    settings = recognise(tmp_path).settings
    assert settings is not None
    data = open_labels(SEGMENTATION, config_of(settings), "val")
    assert data.class_names == ("a--sky", "c")  # one has no readable name
    assert data.label(0)[:, 0].tolist() == [0] * 5 + [255] * 10 + [1] * 5
    write(tmp_path / "config_v1.2.json", "{}")
    with pytest.raises(DataError, match=r"config_v1\.2\.json"):
        open_labels(SEGMENTATION, config_of(settings), "val")


def coco(root: Path, name: str, image: dict[str, Any], segmentation: Any) -> None:
    picture(root / "train2017" / "000000000001.jpg")
    entry = {"id": 1, "image_id": 1, "category_id": 1, "segmentation": segmentation}
    content = {
        "images": [{"id": 1, "height": HEIGHT, "width": WIDTH, **image}], "annotations": [entry],
        "categories": [{"id": 1, "name": "cat"}],
    }  # fmt: skip
    write(root / name, json.dumps(content))


@pytest.mark.parametrize("segmentation", [
    [[10, 4, 30, 4, 30, 16, 10, 16]], {"size": [20, 40], "counts": [204, *([12, 8] * 19), 12, 204]},
])  # fmt: skip
def test_lvis_names_and_boxes_of_outlines(tmp_path: Path, segmentation: Any) -> None:
    url = "http://images.cocodataset.org/train2017/000000000001.jpg"
    coco(tmp_path, "lvis_v1_train.json", {"coco_url": url}, segmentation)
    data = opened(tmp_path)
    assert data.ids == ("train2017/000000000001.jpg",)
    assert data.boxes(0).tolist() == [[10, 4, 30, 16]]
    assert data.entries(0)[0]["bbox"] == [10, 4, 20, 12]
    assert data.masks(0)[0].sum() == 240


@pytest.mark.parametrize("segmentation", [
    [[10, 4, 30]], [["x", 4]], [[float("inf"), 4, 5, 5, 6, 6]], {"size": [1 << 20, 1 << 20], "counts": []},
    {"size": [20, 40], "counts": [800]}, {"size": "x", "counts": []}, "x",
])  # fmt: skip
def test_boxes_of_outlines_that_are_none(tmp_path: Path, segmentation: Any) -> None:
    coco(tmp_path, "boxes.json", {"file_name": "000000000001.jpg"}, segmentation)
    config = config_of({"kind": "coco_json", "root": str(tmp_path / "train2017"), "annotations": "../boxes.json"})
    with pytest.raises(DataError, match=r"boxes\.json"):
        open_labels(DETECTION, config, "all")


@pytest.mark.parametrize(("ending", "extension", "given"), [
    ("_mask", "png", None), ("_mask", "tif", None), ("_lab", "png", "_lab"),
])  # fmt: skip
def test_masks_beside_their_pictures(tmp_path: Path, ending: str, extension: str, given: str | None) -> None:
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[5:12, 6:30] = 1
    for number in range(6):
        picture(tmp_path / f"p{number}.jpg")
        Image.fromarray(labels).save(tmp_path / f"p{number}{ending}.{extension}")
    write(tmp_path / "classes.txt", "ground\nsquare\n")
    settings = recognise(tmp_path).settings
    assert settings is not None
    assert settings.get("mask_ending") == given
    data = open_labels(SEGMENTATION, config_of(settings), "all")
    assert (len(data), int((data.label(0) == 1).sum())) == (6, 7 * 24)
