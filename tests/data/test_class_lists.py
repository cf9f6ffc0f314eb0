"""Lists of class names: lines that are no class are refused, numbers beside names are no part of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.data.class_lists import listed_classes
from dinoskip.data.sets.voc import class_names
from dinoskip.data.sets.yolo import read_names
from dinoskip.errors import DataError


def written(folder: Path, *lines: str) -> Path:
    path = folder / "classes.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("heading", ["name,id", "id;name", "classes", "Class Names:", "class_id,class_name", "labels"])
def test_names_of_columns_are_refused_for_every_kind(tmp_path: Path, heading: str) -> None:
    path = written(tmp_path, heading, "road", "car")
    for read in (lambda: listed_classes(path), lambda: class_names(tmp_path), lambda: read_names(tmp_path)):
        with pytest.raises(DataError, match=r"classes\.txt"):
            read()


@pytest.mark.parametrize(
    "lines",
    [("road", "car"), ("name", "address"), ("label", "logo"), ("labels",), ("iphone 5", "iphone 6"),
     ("3 seater", "2 door"), ("class 0", "class 1"), ("0", "1"), ("1 euro", "2 euro"), ("traffic light", "id card")],
)  # fmt: skip
def test_names_are_left_as_they_are(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert listed_classes(written(tmp_path, *lines)) == (lines, ())


@pytest.mark.parametrize("form", ["{number}: {name}", "{number};{name}", "{number} {name}", "{name},{number}"])
def test_numbers_beside_all_names_are_no_part_of_them(tmp_path: Path, form: str) -> None:
    lines = [form.format(number=number, name=name) for number, name in enumerate(["background", "car"])]
    assert listed_classes(written(tmp_path, *lines)) == (("background", "car"), (0, 1))
    assert read_names(tmp_path).names == ("background", "car")
    with pytest.raises(DataError, match="0 to 1"):  # the first of VOC's list is value 1
        class_names(tmp_path)
