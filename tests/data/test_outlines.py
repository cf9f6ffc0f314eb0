"""Outlines in COCO's format: what is refused and why, masks, and memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as reference

from dinoskip.data import CocoJsonConfig, check, open_labels, outlines
from dinoskip.data.outlines import OutlineError, Reason, mask_of_outline
from dinoskip.data.sets.coco_json import CocoDetection
from dinoskip.data.sets.labels import DETECTION
from dinoskip.errors import DataError
from tests.helpers.golden import recorded_outlines
from tests.helpers.outline_mutations import compressed, runs_of, sound

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # numpy 2 of pycocotools' decode
ROOT = Path(__file__).parents[2]
GOLDEN = recorded_outlines()
SIZE = (12, 17)
EVERYWHERE = [0, 0, 17, 12]
SQUARE = [1, 1, 6, 1, 6, 6, 1, 6]
BEFORE = [0, 3, 9, 3, 9, 3]  # runs of 27 of the 204 pixels


def shown(mask: np.ndarray) -> list[str]:
    return ["".join(".#"[int(pixel)] for pixel in row) for row in mask]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_equals_the_recorded_case(case: dict[str, Any]) -> None:
    size = case["height"], case["width"]
    for _ in range(3):
        if case["verdict"] == "refuse":
            with pytest.raises(OutlineError) as caught:
                mask_of_outline(case["segmentation"], size, case["bbox"])
            assert caught.value.reason == case["reason"]
        else:
            mask = mask_of_outline(case["segmentation"], size, case["bbox"])
            assert (mask.dtype, int(mask.sum()), shown(mask)) == (np.bool_, case["area"], case["mask"])


def write_set(root: Path, cases: list[dict[str, Any]]) -> CocoJsonConfig:
    """A set with an image and an annotation for each case."""
    for number, case in enumerate(cases):
        blank = np.zeros((case["height"], case["width"]), np.uint8)
        Image.fromarray(blank).save(root / f"{number:03d}.png")
    content = {
        "images": [{"id": i, "file_name": f"{i:03d}.png"} for i in range(len(cases))],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1, "bbox": case["bbox"], "segmentation": case["segmentation"]}
            for i, case in enumerate(cases)
        ],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (root / "annotations.json").write_text(json.dumps(content))
    return CocoJsonConfig(root=str(root))


@pytest.mark.skipif(not GOLDEN, reason="../shared/golden/meaning is absent")
def test_every_recorded_case_is_met_where_a_set_is_read_and_checked(tmp_path: Path) -> None:
    config = write_set(tmp_path, GOLDEN)
    dataset = open_labels(DETECTION, config, "all")
    assert isinstance(dataset, CocoDetection)
    for number, case in enumerate(GOLDEN):
        if case["verdict"] == "refuse":
            with pytest.raises(DataError, match=f"annotation {number}: outline: {case['reason']}: "):
                dataset.masks(number)
        else:
            (mask,) = dataset.masks(number)
            assert shown(mask) == case["mask"]
    (row,) = check(config, sample=None)
    assert row.fault_count == sum(case["verdict"] == "refuse" for case in GOLDEN)


FORMS: list[tuple[Any, Reason]] = [
    *((value, "malformed") for value in (None, True, 3, 1.5, "", "abc", "0" * 10)),
    *(({"counts": [*BEFORE, 177], **size}, "size") for size in (
        {}, {"size": None}, {"size": 204}, {"size": "1217"}, {"size": []}, {"size": [12]}, {"size": [12, 17, 1]},
        {"size": [17, 12]}, {"size": [12.0, 17.0]}, {"size": ["12", "17"]}, {"size": [True, 17]}, {"size": [-12, -17]},
        {"size": [12, 10**400]}, {"size": [0, 0]}, {"size": [math.nan, 17]}, {"size": [1 << 20, 1 << 20]},
        {"size": {"0": 12, "1": 17}}, {"size": [[12], [17]]},
    )),
    *(({"size": [12, 17], **counts}, "malformed") for counts in (
        {}, {"counts": None}, {"counts": 204}, {"counts": True}, {"counts": {}}, {"counts": 1e9},
        {"counts": "T"}, {"counts": "0!"}, {"counts": "é0"}, {"counts": "\x000"}, {"counts": " 0"}, {"counts": "0\n"},
        {"counts": "p0"}, {"counts": "/0"}, {"counts": "o" * 1000}, {"counts": "\ud8000"}, {"counts": "٣"},
    )),
    *(({"size": [12, 17], "counts": [*BEFORE, value]}, reason) for value, reason in (
        (math.inf, "non-finite"), (-math.inf, "non-finite"), (math.nan, "non-finite"),
        (177.0, "non-integer"), (177.5, "non-integer"), ("177", "non-integer"), (True, "non-integer"),
        (None, "non-integer"), ([177], "non-integer"), ({}, "non-integer"), (1e308, "non-integer"),
        (-177, "negative"), (-(10**400), "negative"), (-1, "negative"),
        (0, "counts"), (176, "counts"), (178, "counts"), (10**400, "counts"), (2**32 + 177, "counts"),
        (2**63, "counts"), (2**64 + 177, "counts"),
    )),
    ({"size": [12, 17], "counts": [*BEFORE, -1, 178]}, "negative"),
    ({"size": [12, 17], "counts": ["x", math.nan]}, "non-finite"),
    ({"size": [12, 17], "counts": [-1, "x"]}, "non-integer"),
    ({"size": [12, 17], "counts": [2**31] * 4}, "counts"),
    ({"size": [12, 17], "counts": [2**63, 2**63, 204]}, "counts"),
    ({"size": [12, 17], "counts": []}, "counts"),
    ({"size": [12, 17], "counts": ""}, "counts"),
    ({"size": [12, 17], "counts": "P" * 100_000 + "0"}, "counts"),
    ({"size": [12, 17], "counts": "o" * 100_000 + "O"}, "counts"),
    ({"size": [12, 17], "counts": "ooooooooooo7" * 100}, "counts"),
    ({"size": [12, 17], "counts": compressed([100, -5, 109])}, "negative"),
    ({"size": [12, 17], "counts": compressed([100, 5, 98])}, "counts"),
    ({"size": [12, 17], "counts": [204]}, "empty"),
    ({"size": [12, 17], "counts": [204, 0]}, "empty"),
    ({"size": [12, 17], "counts": [100, 0, 104]}, "empty"),
    ([], "empty"),
    *((parts, "malformed") for parts in (
        [None], [3], ["abc"], [{}], [True], SQUARE, [[SQUARE]], [[*SQUARE[:-1], "6"]], [[*SQUARE[:-1], None]],
        [[*SQUARE[:-1], True]], [[*SQUARE[:-1], [6]]], [SQUARE, None], [[math.nan], "x"], [SQUARE, [1, 1, "x"]],
    )),
    *(([[*SQUARE, 1, value]], reason) for value, reason in (
        (math.inf, "non-finite"), (-math.inf, "non-finite"), (math.nan, "non-finite"), (1e9, "outside"),
        (-1e9, "outside"), (10**400, "outside"), (-(10**400), "outside"), (1e308, "outside"), (-1.001, "outside"),
        (13.001, "outside"), (2**31, "outside"),
    )),
    ([[18.01, 1, 6, 6, 1, 6]], "outside"),
    ([[*SQUARE, 1]], "odd"), ([[1]], "odd"), ([[1, math.nan, 3]], "non-finite"), ([[-50, 1, 2]], "odd"),
    ([[]], "points"), ([[1, 1]], "points"), ([[1, 1, 6, 6]], "points"), ([SQUARE, [1, 1]], "points"),
    ([[1, 1], [math.nan] * 6], "points"), ([[-50, 1, 2, 2]], "points"), ([[-50, 1, 2, 2, 3, 3], [1]], "outside"),
    ([[3, 3] * 3], "empty"), ([[1, 1, 6, 1, 3, 1]], "empty"), ([[-1, -1, 18, -1, 0, -1]], "empty"),
]  # fmt: skip
"""Outlines of an image of 12 x 17 pixels, beside the recorded ones, and the first rule that each breaks."""


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_the_first_rule_that_is_broken_is_named(number: int) -> None:
    segmentation, reason = FORMS[number]
    for _ in range(3):
        with pytest.raises(OutlineError) as caught:
            mask_of_outline(segmentation, SIZE, EVERYWHERE)
        assert caught.value.reason == reason
        assert len(str(caught.value)) < 200
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("bbox", "meets"),
    [
        ([5.5, 5.5, 1, 1], True), ([6, 1, 4, 4], False), ([1, 6, 4, 4], False), ([0, 0, 1, 1], False),
        ([0, 0, 1.01, 1.01], True), ([3, 3, 0, 5], False), ([8, 1, 2, 5], False), ([1, 8, 5, 2], False),
    ],
)  # fmt: skip
def test_a_mask_shares_area_with_its_box(bbox: list[float], meets: bool) -> None:
    if meets:
        assert mask_of_outline([SQUARE], SIZE, bbox).sum() == 25
    else:
        with pytest.raises(OutlineError) as caught:
            mask_of_outline([SQUARE], SIZE, bbox)
        assert caught.value.reason == "bbox"


def test_runs_of_random_masks_come_back() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        size = tuple(int(side) for side in rng.integers(1, 40, 2))
        mask = rng.random(size) < rng.choice([0.02, 0.5, 0.98])
        mask[rng.integers(size[0]), rng.integers(size[1])] = True
        runs, text = runs_of(mask), reference.encode(np.asfortranarray(mask, np.uint8))["counts"].decode()
        assert compressed(runs) == text
        for counts in (runs, text):
            given = {"size": list(size), "counts": counts}
            np.testing.assert_array_equal(mask_of_outline(given, size, [0, 0, size[1], size[0]]), mask)


def test_polygons_are_pycocotools_bit_by_bit() -> None:
    rng, compared = np.random.default_rng(0), 0
    while compared < 400:
        outline, size, box = sound(rng)
        if not isinstance(outline, list):
            continue
        expected = reference.decode([reference.merge(reference.frPyObjects(outline, *size))])[..., 0].astype(bool)
        if expected.any():
            np.testing.assert_array_equal(mask_of_outline(outline, size, box), expected)
            compared += 1


def test_a_long_polygon_is_cut_without_a_pixel_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        points = rng.uniform(-1, [18, 13], (int(rng.integers(4, 60)), 2))
        outline = [(points if rng.random() < 0.5 else points.round(1)).ravel().tolist()]
        whole = mask_of_outline(outline, SIZE, EVERYWHERE)
        with monkeypatch.context() as patched:
            patched.setattr(outlines, "_WALKED", 50)
            np.testing.assert_array_equal(mask_of_outline(outline, SIZE, EVERYWHERE), whole)


def test_spoilt_outlines_end_alike_three_times_in_little_memory() -> None:
    command = [sys.executable, "-m", "tests.helpers.outline_mutations", "1500", "0", "64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert set(counts) == {"sound", *get_args(Reason)}
    assert sum(counts.values()) == 1500


LONG = """
import resource
import numpy as np
from tests.helpers.outline_mutations import limit_memory
from pycocotools import mask
from dinoskip.data.outlines import mask_of_outline
edges = np.stack([np.tile([0, 1000], 2_500), np.linspace(0, 900, 5_000)], 1)  # across the image and back
limit_memory(160)
print(mask_of_outline([edges.ravel().tolist()], (900, 1000), [0, 0, 1000, 900]).sum())
"""


def test_a_polygon_of_any_length_takes_bounded_memory() -> None:
    """pycocotools alone asks for 400 MB here, and writes where it got none."""
    done = subprocess.run(
        [sys.executable, "-c", LONG], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
