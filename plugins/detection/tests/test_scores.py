"""AP, also from its records, against pycocotools' own summary."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from dinoskip.results.average_precision import average_precision, mean_average_precision, weighted_average_precision
from dinoskip.results.statistics import interval
from dinoskip_detection.scores import PARTS, match
from eval.object_scores import outline

CLASSES = (3, 5, 8)


def entries(rng: np.random.Generator, images: int, most: int, scored: bool) -> list[list[dict[str, Any]]]:
    """Random boxes of two of three classes in images of 40 pixels, a few of the objects crowds."""
    made = []
    for _ in range(images):
        own = []
        for _ in range(int(rng.integers(0, most + 1))):
            x, y = rng.integers(0, 24, 2).tolist()
            w, h = rng.integers(6, 16, 2).tolist()
            mask = np.zeros((40, 40), dtype=np.bool_)
            mask[y : y + h, x : x + w] = True
            one = {"category_id": int(rng.choice(CLASSES[:2])), "bbox": [x, y, w, h], "area": w * h,
                   "segmentation": outline(mask)}  # fmt: skip
            own.append({**one, "score": float(rng.random())} if scored else {**one, "iscrowd": int(rng.random() < 0.1)})
        made.append(own)
    return made


def summary(truth: list[list[dict[str, Any]]], found: list[list[dict[str, Any]]], kind: str) -> np.ndarray:
    """AP, AP50, AP75 as pycocotools sums them up in its defaults."""
    both = []
    for entries_of in (truth, found):
        made = COCO()
        listed = [{"iscrowd": 0, **one, "image_id": i} for i, own in enumerate(entries_of) for one in own]
        made.dataset = {
            "images": [{"id": i, "height": 40, "width": 40} for i in range(len(entries_of))],
            "categories": [{"id": one} for one in CLASSES],
            "annotations": [{**one, "id": 1 + number} for number, one in enumerate(listed)],
        }
        both.append(made)
    with contextlib.redirect_stdout(io.StringIO()):
        for made in both:
            made.createIndex()
        evaluation = COCOeval(*both, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[:3]


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["bbox", "segm"]))
@settings(max_examples=25, deadline=None)
def test_equals_the_summary_of_pycocotools(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    truth, found = entries(rng, 4, 5, False), entries(rng, 4, 8, True)
    for own, other in zip(found, truth, strict=True):  # some that hit
        own += [{**one, "score": float(rng.random())} for one in other if rng.random() < 0.7]
    matches = match(truth, found, CLASSES, kind)
    wanted = summary(truth, found, kind)
    ours = [matches.ap(part) for part in PARTS]
    np.testing.assert_allclose(np.nan_to_num(ours, nan=-1), wanted, atol=1e-12)
    np.testing.assert_allclose(average_precision(matches.detections), matches.precision, atol=1e-12)


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["bbox", "segm"]), ties=st.booleans())
@settings(max_examples=25, deadline=None)
def test_records_of_any_images_give_their_ap(seed: int, kind: str, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    truth, found = entries(rng, 8, 4, False), entries(rng, 8, 5, True)
    for own, other in zip(found, truth, strict=True):
        own += [{**one, "score": float(rng.random())} for one in other if rng.random() < 0.7]
        for one in own if ties else ():
            one["score"] = float(rng.integers(1, 4)) / 4
    matches = match(truth, found, CLASSES, kind)
    kept = np.flatnonzero(rng.random(8) < 0.6)
    wanted = summary([truth[i] for i in kept], [found[i] for i in kept], kind)
    turned = rng.permutation(kept)  # by another order of ids: ties keep that of the data set
    ours = [mean_average_precision(matches.records(part)[turned]) for part in PARTS]
    np.testing.assert_allclose(np.nan_to_num(ours, nan=-1), wanted, atol=1e-12)
    times = np.zeros((1, 8))
    times[0, kept] = 1
    ours = [weighted_average_precision(matches.records(part), times)[0] for part in PARTS]
    np.testing.assert_allclose(np.nan_to_num(ours, nan=-1), wanted, atol=1e-12)


def test_all_found_is_one_and_nothing_is_zero() -> None:
    truth = entries(np.random.default_rng(0), 6, 4, False)
    found = [[{**one, "score": 0.5} for one in own if not one["iscrowd"]] for own in truth]
    for kind in ("bbox", "segm"):
        matches = match(truth, found, CLASSES, kind)
        assert [matches.ap(part) for part in PARTS] == pytest.approx([1, 1, 1])
        assert interval(matches.records("AP"))[1] == 1
        assert match(truth, [[] for _ in truth], CLASSES, kind).ap("AP") == 0


def test_nothing_to_find_has_no_interval() -> None:
    matches = match([[], []], [[], []], CLASSES, "bbox")
    assert np.isnan(matches.ap("AP"))
    assert np.isnan(interval(matches.records("AP"))).all()
