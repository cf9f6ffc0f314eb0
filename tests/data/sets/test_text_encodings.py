"""Lists, classes, XML, JSON and CSV as editors of Windows save them: byte order marks, CRLF, UTF-16."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.data.detection import read_voc_xml
from dinoskip.data.listing import read_names, read_text
from dinoskip.data.sets.coco20k import read_coco20k_list
from dinoskip.data.sets.coco_json import load_coco
from dinoskip.data.sets.masks import read_classes
from dinoskip.data.sets.voc import class_names, read_list
from dinoskip.errors import DataError
from dinoskip.io.files import read_json
from dinoskip.settings.config import read_yaml

FORMS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le-marked")


def write(path: Path, text: str, form: str) -> Path:
    """Write a text with the line ends of Windows."""
    content = text.replace("\n", "\r\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\xff\xfe" + content.encode("utf-16-le") if form.endswith("marked") else content.encode(form))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_lists_and_classes(tmp_path: Path, form: str) -> None:
    assert read_classes(write(tmp_path / "classes.txt", "Vögel\nobject\n", form)) == ("Vögel", "object")
    assert class_names(tmp_path) == ("Vögel", "object")
    write(tmp_path / "ImageSets/Main/val.txt", "a0\na1\n", form)
    assert read_list(tmp_path, "Main", "val") == ("a0", "a1")
    assert read_names(write(tmp_path / "names.txt", "a.jpg\nb.jpg", form), "image") == ["a.jpg", "b.jpg"]
    listed = read_coco20k_list(write(tmp_path / "list.txt", "train2014/a.jpg\ntrain2014/b.jpg\n", form))
    assert listed == (("a.jpg", "b.jpg"), False)
    assert "\ufeff" not in read_text(write(tmp_path / "pairs.csv", "source,target\n", form), "list of pairs")


@pytest.mark.parametrize("form", FORMS)
def test_json_and_xml(tmp_path: Path, form: str) -> None:
    content = {"images": [{"id": 1, "file_name": "ü.jpg"}], "annotations": [], "categories": []}
    path = write(tmp_path / "a.json", json.dumps(content, indent=1, ensure_ascii=False), form)
    assert load_coco(path).images[1]["file_name"] == "ü.jpg"
    assert read_json(path) == content
    text = "<annotation>\n<object><name>Kühe</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax>"
    (found,) = read_voc_xml(write(tmp_path / "a.xml", f"{text}</bndbox></object>\n</annotation>", form)).objects
    assert found.label == "Kühe"


@pytest.mark.parametrize("form", FORMS)
def test_configurations(tmp_path: Path, form: str) -> None:
    assert read_yaml(write(tmp_path / "a.yaml", "name: x\ndata:\n  mine: {kind: images}\n", form)).tree["name"] == "x"


def test_other_bytes_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes("Vögel\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"classes\.txt"):
        read_classes(tmp_path / "classes.txt")


def test_a_comment_is_no_class(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"classes\.txt: '# my classes'"):
        read_classes(write(tmp_path / "classes.txt", "# my classes\nbackground\nobject\n", FORMS[0]))
