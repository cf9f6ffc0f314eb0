"""Video label propagation, J and F against recorded outputs (float64; the public scripts agree with them)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip_video.video import (
    PropagationRule,
    VideoMemory,
    at_size,
    frame_scores,
    hard_labels,
    object_scores,
    unit_tokens,
)
from tests.helpers.golden import recorded

GOLDEN, VIDEOS = recorded("dense", "video")
_, SCORES = recorded("dense", "jf")


@pytest.mark.parametrize("case", VIDEOS, ids=lambda case: case["name"])
def test_propagation(case: dict) -> None:
    grid, patch = tuple(case["grid"]), case["patch_size"]
    rule = PropagationRule(case["radius"], case["topk"], case["temperature"])
    with np.load(GOLDEN / case["file"], allow_pickle=False) as data:
        tokens = unit_tokens(torch.from_numpy(data["feats"]).flatten(1, 2))
        first = torch.from_numpy(data["first_mask"]).flatten(1).T.float()
        memory = VideoMemory(tokens[0], first.contiguous(), case["n_last_frames"])
        for step, frame in enumerate(tokens[1:]):
            soft = memory.follow(frame, grid, rule)
            np.testing.assert_allclose(soft.T.reshape(-1, *grid), data["soft"][step], rtol=0, atol=1e-4)
            labels, sure = hard_labels(soft, grid, patch), ~data["uncertain"][step]
            np.testing.assert_array_equal(labels[sure], data["labels"][step][sure])
            if case["original_hw"]:
                size = tuple(case["original_hw"])
                unsure = Image.fromarray(data["uncertain"][step]).resize(size[::-1], Image.Resampling.NEAREST)
                sure = ~np.asarray(unsure)
                np.testing.assert_array_equal(at_size(labels, size)[sure], data["labels_original"][step][sure])


@pytest.mark.parametrize("case", SCORES, ids=lambda case: case["name"])
def test_j_and_f(case: dict) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as data:
        truth, predicted, count = data["gt"], data["pred"], case["objects"]
        frames = [frame_scores(*pair, count) for pair in zip(predicted[1:-1], truth[1:-1], strict=True)]
        for at, name in enumerate("JF"):
            values = np.stack(frames, -1)[:, at]
            np.testing.assert_allclose(values, data[name], rtol=0, atol=1e-9)
            scores = object_scores(values)
            np.testing.assert_allclose(np.stack(scores, -1), data[f"{name}_stats"], rtol=0, atol=1e-9)
            for key, wanted in zip(("mean", "recall", "decay"), scores, strict=True):
                assert wanted.mean() == pytest.approx(case["expected"][f"{name}_{key}"], abs=1e-9)
