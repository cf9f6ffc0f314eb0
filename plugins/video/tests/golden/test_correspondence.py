"""Keypoint transfer and PCK against recorded outputs (float64, the rules of the protocol ``tokens``)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dinoskip_video.correspondence import CorrespondenceConfig, Matcher, Placement, pck
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("dense", "pck")
CONFIG = CorrespondenceConfig(protocol="tokens")


def place(original: np.ndarray, shown: np.ndarray) -> Placement:
    scale = float(shown[1] / original[1]), float(shown[0] / original[0])
    return Placement((int(original[0]), int(original[1])), 0, scale, (0, 0))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_transfer_and_pck(case: dict) -> None:
    hits, categories = [], []
    with np.load(GOLDEN / case["file"], allow_pickle=False) as data:
        for i in range(case["pairs"]):
            sizes, seen = data[f"sizes_{i}"], data[f"visible_{i}"]
            source, target = (data[f"{part}_feats_{i}"] for part in ("src", "trg"))
            places = place(*sizes[:2]), place(*sizes[2:])
            box = data[f"trg_box_{i}"]
            readers = [Matcher(CONFIG, one.shape[:2], case["patch_size"]) for one in (source, target)]
            flat = [torch.from_numpy(one).flatten(0, 1) for one in (source, target)]
            found = readers[1].match(
                readers[0].descriptors(flat[0], data[f"src_kps_{i}"].astype(float), places[0]),
                readers[1].prepared(flat[1], places[1]),
                data[f"trg_kps_{i}"].astype(float),
                float(max(box[2] - box[0], box[3] - box[1])),
                places[1],
            )
            np.testing.assert_allclose(found.found, data[f"pred_kps_{i}"], rtol=0, atol=1e-3)
            right = np.stack([found.hits(alpha, strict=False)[seen] for alpha in case["thresholds"]])
            np.testing.assert_array_equal(right, data[f"correct_{i}"])
            hits.append(right)
            categories.append(str(int(data["category"][i])))
    wanted = case["expected"]
    for name in {"", *categories}:
        expected = wanted["by_category"][name] if name else wanted
        some = [one for one, category in zip(hits, categories, strict=True) if name in {"", category}]
        for at in range(len(case["thresholds"])):
            scores = pck([one[at] for one in some])
            assert scores.per_point == pytest.approx(expected["per_point"][at], abs=1e-9)
            assert scores.per_image == pytest.approx(expected["per_image"][at], abs=1e-9)
