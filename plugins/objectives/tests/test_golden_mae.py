"""MAE's targets, loss and gradient against recorded outputs of the public code's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dinoskip_objectives.mae import patch_targets, reconstruction_loss
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("dense", "mae")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_targets_loss_and_gradient_are_the_recorded_ones(case: dict[str, Any]) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    targets = patch_targets(arrays["images"].double(), case["patch_size"], case["norm_pix"])
    torch.testing.assert_close(targets, arrays["target"].double(), rtol=0, atol=1e-4)
    removed = arrays["mask"].bool()
    painted = arrays["pred"].double().requires_grad_()
    loss = reconstruction_loss(painted[removed], targets[removed])
    assert loss.item() == pytest.approx(case["expected"]["loss"], rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, painted)
    torch.testing.assert_close(gradient, arrays["grad_pred"].double(), rtol=0, atol=1e-6)
