"""Clusters matched to classes against recorded outputs of STEGO's metric and of the rules by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip_dense.cluster import confusion, one_to_one, to_the_commonest
from dinoskip_dense.cluster.matching import ImageCounts, matched_areas, total_counts
from eval.metrics import scores_of_areas
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("dense", "cluster")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_equals_reference(case: dict) -> None:
    shape, expected, tolerance = (case["clusters"], case["classes"]), case["expected"], case["tolerance"]["ratios"]
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        data = dict(stored)
    maps = [(data[f"clusters_{i}"], data[f"labels_{i}"]) for i in range(case["images"])]
    images = [ImageCounts.of(confusion(*pair, shape)) for pair in maps]
    counts = total_counts(images, shape)
    np.testing.assert_array_equal(counts, data["confusion"])
    matches = {"majority": to_the_commonest(counts)}
    if shape[0] == shape[1]:
        matches |= {"hungarian": one_to_one(counts), "hungarian_iou": one_to_one(counts, "iou")}
    for name, chosen in matches.items():
        if name == "majority" or expected["map_unique"]:
            np.testing.assert_array_equal(chosen, data[f"{name}_map"])
        scores = scores_of_areas(matched_areas(images, chosen, shape[1]).sum(0))
        assert scores.miou == pytest.approx(expected[f"{name}_miou"], abs=tolerance)
        assert scores.aacc == pytest.approx(expected[f"{name}_accuracy"], abs=tolerance)
        if name == "majority" or expected["map_unique"]:
            np.testing.assert_allclose(scores.iou, data[f"{name}_iou"], rtol=0, atol=tolerance)
