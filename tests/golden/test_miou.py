"""Segmentation scores against recorded outputs of mmsegmentation's IoUMetric."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eval.metrics import ConfusionMatrix

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "miou"
CASES = json.loads((GOLDEN / "index.json").read_text())["cases"] if GOLDEN.is_dir() else []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_equals_reference(case: dict) -> None:
    matrix = ConfusionMatrix(case["num_classes"], case["ignore_index"], case["reduce_zero_label"])
    with np.load(GOLDEN / case["file"], allow_pickle=False) as data:
        for i in range(case["num_images"]):
            matrix.update(data[f"pred_{i}"], data[f"label_{i}"])
        for name in ("intersect", "union", "pred", "label"):
            have = {"intersect": matrix.intersect, "union": matrix.union}.get(name)
            have = getattr(matrix, f"area_{name}") if have is None else have
            np.testing.assert_array_equal(have, data[f"area_{name}"], err_msg=name)
        scores = matrix.scores()
        np.testing.assert_allclose(scores.iou, data["IoU"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(scores.acc, data["Acc"], rtol=0, atol=1e-9)
        wanted = [np.nan if v is None else v for v in (case["expected"][k] for k in ("aAcc", "mIoU", "mAcc"))]
    np.testing.assert_allclose([scores.aacc, scores.miou, scores.macc], wanted, rtol=0, atol=1e-9)
