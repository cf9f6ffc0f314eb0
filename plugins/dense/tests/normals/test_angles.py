"""The loss of normals, its gradient for many heads, and the metrics, against plain restatements."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dinoskip_dense.normals.angles import NAMES, angular_loss, logit_gradients, normal_scores, to_pixels

HEADS, IMAGES, GRID, SIZE = 3, 2, (3, 4), (13, 17)


def made_up(channels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    maps = torch.randn(HEADS, channels, IMAGES, *GRID, generator=rng)
    truth = F.normalize(torch.randn(IMAGES, 3, *SIZE, generator=rng), dim=1)
    return maps, truth, torch.rand(IMAGES, *SIZE, generator=rng) < 0.7


def plain_loss(predicted: torch.Tensor, truth: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """One head, as probe3d's code has it."""
    angle = torch.cosine_similarity(predicted[:, :3], truth, dim=1).clamp(min=-1 + 1e-4, max=1 - 1e-4).acos()
    if predicted.shape[1] == 4:
        kappa = F.elu(predicted[:, 3]) + 1.01
        angle = (1 + (-kappa * torch.pi).exp()).log() - (kappa.pow(2) + 1).log() + kappa * angle
    return angle[valid].mean()


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("times", [1, 4])
def test_slopes_are_autograds(channels: int, times: int) -> None:
    maps, truth, valid = made_up(channels)
    have = logit_gradients(maps.reshape(HEADS * channels, -1), GRID, truth, valid, channels=channels, times=times)
    leaf = maps.clone().requires_grad_()
    total = torch.zeros(())
    for head in leaf:
        fine = (
            F.interpolate(head.transpose(0, 1), scale_factor=times, mode="bilinear")
            if times > 1
            else head.transpose(0, 1)
        )
        total = total + plain_loss(F.interpolate(fine, size=SIZE, mode="bicubic"), truth, valid)
    (wanted,) = torch.autograd.grad(total, leaf)
    torch.testing.assert_close(have.view_as(maps), wanted, atol=1e-6, rtol=1e-4)


def test_losses_together_are_those_alone_and_nothing_valid_is_none() -> None:
    maps, truth, valid = made_up(4)
    pixels = to_pixels(maps.transpose(1, 2), SIZE, 2)
    wanted = [plain_loss(one, truth, valid) for one in pixels]
    torch.testing.assert_close(angular_loss(pixels, truth, valid), torch.stack(wanted))
    assert float(angular_loss(pixels, truth, torch.zeros_like(valid)).abs().max()) == 0


def test_scores_are_those_of_a_loop_over_pixels() -> None:
    maps, truth, valid = made_up(3)
    predicted = to_pixels(maps.transpose(1, 2), SIZE, 1)[:, 0] + truth[0]
    have = normal_scores(predicted.double(), truth[0].double(), valid[0])
    for own, one in zip(have.tolist(), predicted.double().numpy(), strict=True):
        angles = []
        for y, x in np.argwhere(valid[0].numpy()):
            a, b = one[:, y, x], truth[0, :, y, x].double().numpy()
            cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
            angles.append(math.degrees(math.acos(min(1.0, max(-1.0, cosine)))))
        wanted = [math.sqrt(sum(a * a for a in angles) / len(angles))]
        wanted += [sum(a < limit for a in angles) / len(angles) for limit in (11.25, 22.5, 30)]
        assert own == pytest.approx(wanted, rel=1e-5)
    assert NAMES == ("RMSE angle", "within 11.25", "within 22.5", "within 30")
    assert bool(normal_scores(predicted, truth[0], torch.zeros_like(valid[0])).isnan().all())
