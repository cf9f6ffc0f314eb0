"""The block that each network of a gallery is shown at on the report's strip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dinoskip.pipeline.gallery.columns import _block_of_strip
from dinoskip.pipeline.stage import Task
from dinoskip.results.records import write_records
from dinoskip.results.rows import EvalResult, read_rows, write_rows
from visualize.gallery import GalleryModel


class Store:
    """The part of a feature store that the choice reads."""

    ids, blocks = ("a",), (1, 2, 3)


def task(out: Path, **inputs: Path) -> Task:
    return Task({}, {}, inputs, out, "cpu", 0)


def miou(block: int, value: float, heldout: float | None) -> EvalResult:
    return EvalResult("mIoU", value, "probe", str(block), "voc", "val", 4, model="net", epoch=1, heldout=heldout)


def test_it_is_the_one_that_held_out_images_choose(tmp_path: Path) -> None:
    rows = (miou(1, 10.0, 20.0), miou(2, 20.0, 30.0), miou(3, 30.0, 10.0))
    assert _block_of_strip(task(tmp_path), GalleryModel("net", Store(), rows=rows), None) == 2


@pytest.mark.parametrize(("images", "block"), [(32, 1), (4, 3)])
def test_else_the_one_that_other_images_choose_where_they_are_enough(tmp_path: Path, images: int, block: int) -> None:
    hits = {1: [1] * images, 2: [0] * (images - 1) + [1], 3: [0] * images}
    rows = [
        EvalResult(
            "CorLoc", 100 * sum(of_block) / images, "tokencut", str(each), "voc", "val", images, model="net", epoch=1
        )
        for each, of_block in hits.items()
    ]
    write_rows(tmp_path / "cut/rows.json", rows)
    names = [str(image) for image in range(images)]
    write_records(tmp_path / "cut/records.npz", names, {i: np.array(own) for i, own in enumerate(hits.values())})
    column = GalleryModel("net", Store(), rows=read_rows(tmp_path / "cut/rows.json"))
    assert _block_of_strip(task(tmp_path, **{"tokencut voc:net": tmp_path / "cut"}), column, None) == block


def test_without_a_number_it_is_the_last_but_one(tmp_path: Path) -> None:
    assert _block_of_strip(task(tmp_path), GalleryModel("net", Store()), None) == 2
    beyond = GalleryModel("net", Store(), rows=(miou(9, 10.0, 20.0),))
    assert _block_of_strip(task(tmp_path), beyond, None) == 2, "a block that the gallery does not show"


def test_the_block_asked_for_where_the_network_has_it(tmp_path: Path) -> None:
    rows = (miou(1, 10.0, 20.0), miou(2, 20.0, 30.0))
    assert _block_of_strip(task(tmp_path), GalleryModel("net", Store(), rows=rows), 3) == 3
    assert _block_of_strip(task(tmp_path), GalleryModel("net", Store(), rows=rows), 11) == 2, "of 3 blocks"
