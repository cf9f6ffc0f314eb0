"""Label files of every kind with one thing wrong: what a score is made of is as before, or one line says what is wrong.

Numbers become impossible ones, names climb out of their folder or lead nowhere, entries come twice, bytes are damaged.
Changes that leave a file valid and say something else are not tried: nothing can tell them from another data set.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.helpers import label_sets
from tests.helpers.label_borders import Maker, Read
from tests.helpers.mutations import mutated, refused

BAD = (
    None, float("nan"), float("inf"), float("-inf"), 1e9, -1e9, 10**400, "", "x", "7", "nan", "../a", "/a", "a\0", [],
    [[]], {}, "\ud800", True, 2**63,
)  # fmt: skip
FAR = st.floats().filter(lambda value: not -5 <= value <= 30) | st.integers(40) | st.integers(max_value=-5)
ANY = st.recursive(
    FAR | st.text("xyz./\\é\0 ", max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(("id", "bbox", "x")), inner),
    max_leaves=6,
)
TEXT = ("", "x", "nan", "inf", "-inf", "1e9", "-1e9", "9" * 400, "../a", "../../outside.png", "/etc/passwd", "a\0", "é")
MAKERS: dict[str, Maker] = {
    "coco": label_sets.coco, "voc": label_sets.voc,
    "coco20k": label_sets.coco20k, "panoptic": label_sets.panoptic, "masks": label_sets.own_masks,
    "ade20k": label_sets.ade20k, "coco_stuff": label_sets.coco_stuff, "cityscapes": label_sets.cityscapes,
    "ecssd": label_sets.ecssd, "pascal_context": label_sets.pascal_context,
}  # fmt: skip
LABELS = {".json", ".xml", ".txt", ".csv", ".png", ".npz"}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from places(inner)


def spoil_json(draw: Callable[..., Any], path: Path) -> None:
    content = json.loads(path.read_text())
    container, key = draw(st.sampled_from(list(places(content))))
    if isinstance(container, list) and draw(st.booleans()):
        container.insert(key, container[key])  # twice
    else:
        bad = st.just("0") if key == "iscrowd" else st.sampled_from(BAD) | ANY  # True is a crowd
        lists = key in {"images", "annotations"}  # which may be empty
        container[key] = draw(bad.filter(bool) if lists else bad)
    path.write_text(json.dumps(content))


def spoil_words(draw: Callable[..., Any], path: Path) -> None:
    """Replace a word of a list or a text of an XML, or give a line twice."""
    text = path.read_text()
    if path.suffix != ".xml" and draw(st.booleans()):
        path.write_text(text * 2)
        return
    words = list(re.finditer(r">([^<>]+)<" if path.suffix == ".xml" else r"(\S+)", text))
    word = draw(st.sampled_from(words))
    changed = text[: word.start(1)] + draw(st.sampled_from(TEXT)) + text[word.end(1) :]
    path.write_text(changed, encoding="utf-8")


def spoil_cells(draw: Callable[..., Any], path: Path) -> None:
    rows = list(csv.reader(path.read_text().splitlines()))
    row = rows[1]
    at = draw(st.integers(0, len(row) - 1))
    parts = row[at].split(";")
    parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(TEXT).filter(lambda text: "\0" not in text))
    row[at] = ";".join(parts)
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)


def spoil_bytes(draw: Callable[..., Any], path: Path) -> None:
    path.write_bytes(draw(mutated([path.read_bytes()])))


SPOIL = {".json": spoil_json, ".xml": spoil_words, ".txt": spoil_words, ".csv": spoil_cells}


def attack_labels(
    make: Maker, folder: Path, cases: int, number: int = 0, read: Read = label_sets.read_everything
) -> dict[str, int]:
    """Spoil a set of a kind ``cases`` times, drawn by ``number``; how many were refused, how many read the same."""
    valid = folder / "valid"
    valid.mkdir(parents=True)
    root = folder / "spoilt"
    config: Any = make(valid).model_copy(update={"root": str(root)})
    shutil.copytree(valid, root)
    expected = read(config)
    files = sorted(path.relative_to(root) for path in root.rglob("*") if path.suffix in LABELS)
    counts = {"refused": 0, "equal": 0}
    got: list[Any] = []

    @seed(number)
    @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(files))
        target = root / name
        try:
            if name.suffix in SPOIL:
                SPOIL[name.suffix](data.draw, target)
            elif data.draw(st.booleans()):
                target.unlink()
            else:
                spoil_bytes(data.draw, target)
            if refused(lambda: got.append(read(config)), str(folder)):
                counts["refused"] += 1
            else:
                assert repr(got.pop()) == repr(expected), f"{name} says something else"
                counts["equal"] += 1
        finally:
            shutil.copyfile(valid / name, target)

    run()
    return counts


@pytest.mark.parametrize("kind", MAKERS)
def test_labels(tmp_path: Path, kind: str) -> None:
    attack_labels(MAKERS[kind], tmp_path, 60)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", MAKERS)
def test_labels_many(tmp_path: Path, kind: str) -> None:
    counts = attack_labels(MAKERS[kind], tmp_path, 10_500)
    print(kind, counts)
