"""iBOT's losses, gradients and centres against recorded outputs of the public code's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dinoskip.training.dino import dino_loss, update_center
from dinoskip_objectives.ibot import patch_loss
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("dense", "ibot")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_losses_gradients_and_centres_are_the_recorded_ones(case: dict[str, Any]) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    center, patch_center = arrays["center_cls_0"].clone(), arrays["center_patch_0"].clone()
    for step in range(case["steps"]):
        torch.testing.assert_close(center, arrays[f"center_cls_{step}"], rtol=0, atol=1e-6)
        torch.testing.assert_close(patch_center, arrays[f"center_patch_{step}"], rtol=0, atol=1e-6)
        masks = arrays[f"masks_{step}"].flatten(0, 1).flatten(1)
        cls, patches = (arrays[f"student_{what}_{step}"].double().requires_grad_() for what in ("cls", "patch"))
        teacher_cls, teacher_patches = (arrays[f"teacher_{what}_{step}"].double() for what in ("cls", "patch"))
        weights = (masks / (masks.sum(1, keepdim=True).clamp(min=1) * len(masks)))[masks]
        temps = case["student_temp"], case["teacher_temp"]
        outcome = dino_loss(cls, teacher_cls, center, *temps)
        patch = patch_loss(
            patches[masks], teacher_patches[masks], patch_center, weights, temps[0], case["teacher_patch_temp"]
        )
        loss = case["lambda_cls"] * outcome.loss + case["lambda_patch"] * patch
        expected = case["expected"][step]
        assert case["lambda_cls"] * outcome.loss.item() == pytest.approx(expected["cls"], rel=1e-5)
        assert case["lambda_patch"] * patch.item() == pytest.approx(expected["patch"], rel=1e-5)
        assert loss.item() == pytest.approx(expected["loss"], rel=1e-5)
        if step == 0:
            for one, name in zip(torch.autograd.grad(loss, (cls, patches)), ("cls", "patch"), strict=True):
                torch.testing.assert_close(one, arrays[f"grad_student_{name}_0"].double(), rtol=0, atol=1e-6)
        update_center(center, outcome.batch_center, case["center_momentum"])
        update_center(patch_center, teacher_patches.mean((0, 1)), case["center_momentum_patch"])
