"""The stacked fit against autograd, torch.optim.AdamW and heads trained alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import eval.probe.stack as stacked
from eval.probe.config import ProbeConfig
from eval.probe.heads import LinearHead
from eval.probe.optimizer import rate_scale
from eval.probe.stack import HeadStack
from eval.probe.targets import Targets, make_targets, node_interpolation
from eval.upsampling import bilinear

CPU = torch.device("cpu")
K, C, N, GRID = 4, 6, 10, (3, 5)
RATES = (1e-3, 1e-2, 1e-1)


def some_labels(height: int, width: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    coarse = rng.choice([0, 1, 2, 3, 255], size=(N, 3, 3))
    return [_stretch(c, height, width) for c in coarse]


def _stretch(coarse: np.ndarray, height: int, width: int) -> np.ndarray:
    rows, columns = np.arange(height) * 3 // height, np.arange(width) * 3 // width
    return coarse[rows][:, columns].astype(np.uint8)


def some_tokens(blocks: tuple[int, ...]) -> dict[int, torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    return {block: torch.randn(N, GRID[0] * GRID[1], C, generator=rng) for block in blocks}


def reference_loss(logits: torch.Tensor, labels: list[np.ndarray]) -> torch.Tensor:
    """Cross-entropy of logits (n, K, h, w) upsampled to labels of one size, mean over pixels that are not 255."""
    target = torch.from_numpy(np.stack(labels)).long()
    whole = F.interpolate(logits, size=target.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(whole, target, ignore_index=255)


def gradients(labels: list[np.ndarray], refine: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The stack's gradient by the logits (n, K, h, w), and autograd's."""
    logits = 2 * torch.randn(N, K, *GRID, generator=torch.Generator().manual_seed(1))
    targets = make_targets(lambda i: labels[i], range(N), K, GRID, refine)
    stack = HeadStack([(1,)], [1.0], K, C, 0.0, CPU)
    flat = logits.transpose(0, 1).reshape(K, -1)
    total = targets.weight.sum()
    mean = Targets(targets.linear / total, targets.weight / total, targets.up, targets.along)
    have = stack.by_logits(flat, mean).view(K, N, *GRID)
    logits.requires_grad_()
    return have.transpose(0, 1), torch.autograd.grad(reference_loss(logits, labels), logits)[0]


@pytest.mark.parametrize("refine", [1, 3, 5])
def test_gradient_is_exact_where_pixels_fall_on_nodes(refine: int) -> None:
    have, wanted = gradients(some_labels(GRID[0] * refine, GRID[1] * refine), refine)
    torch.testing.assert_close(have, wanted, atol=1e-7, rtol=1e-5)


def test_gradient_nears_the_exact_one() -> None:
    labels = some_labels(52, 67)
    errors = []
    for refine in (1, 2, 4, 8):
        have, wanted = gradients(labels, refine)
        errors.append(float((have - wanted).norm() / wanted.norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 0.08  # logits without any smoothness; refine 1 is at 0.2
    assert errors[3] < errors[1] / 8


@pytest.mark.parametrize("refine", [1, 2, 3])
@pytest.mark.parametrize("size", [(3, 5), (2, 3), (31, 44)])
def test_no_token_gains_or_loses_weight(refine: int, size: tuple[int, int]) -> None:
    labels = some_labels(*size)
    targets = make_targets(lambda i: labels[i], range(N), K, GRID, refine)
    rows, columns = (node_interpolation(cells, refine) for cells in GRID)
    torch.testing.assert_close(rows.T @ targets.weight @ columns, targets.linear.sum(1), atol=1e-6, rtol=1e-5)
    for i, label in enumerate(labels):
        onehot = torch.from_numpy(np.stack([label == k for k in range(K)])).float()
        exact = bilinear(size[0], GRID[0]).T @ onehot @ bilinear(size[1], GRID[1]) / label.size
        torch.testing.assert_close(targets.linear[i], exact, atol=1e-6, rtol=1e-5)


def train_alone(x: torch.Tensor, labels: list[np.ndarray], rate: float, batches: list[torch.Tensor]) -> nn.Linear:
    """One head by torch's own parts: linear layer, interpolate, cross_entropy, AdamW, cosine."""
    head = nn.Linear(x.shape[-1], K)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(batches))
    for rows in batches:
        logits = head(x[rows]).transpose(1, 2).unflatten(2, GRID)
        loss = reference_loss(logits, [labels[i] for i in rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return head


def test_stacked_head_equals_head_trained_alone() -> None:
    refine, groups = 3, [(1,), (2,), (1, 2)]
    labels, tokens = some_labels(GRID[0] * refine, GRID[1] * refine), some_tokens((1, 2))
    targets = make_targets(lambda i: labels[i], range(N), K, GRID, refine)
    batches = [torch.randperm(N, generator=torch.Generator().manual_seed(i))[: 4 + i % 3] for i in range(12)]
    stack = HeadStack(groups, RATES, K, C, 0.1, CPU)
    for i, rows in enumerate(batches):
        batch = {block: x[rows].flatten(0, 1) for block, x in tokens.items()}
        stack.step(batch, targets.rows(rows), rate_scale(ProbeConfig(), i, len(batches)))
    identity = {block: (torch.zeros(C), torch.ones(C)) for block in tokens}
    for g, group in enumerate(groups):
        together = torch.cat([tokens[block] for block in group], -1)
        for r, rate in enumerate(RATES):
            alone, head = train_alone(together, labels, rate, batches), LinearHead(*stack.folded(g, r, identity))
            have = torch.cat([head.weights[block] for block in group], 1)
            torch.testing.assert_close(have, alone.weight.detach(), atol=2e-5, rtol=1e-3)
            torch.testing.assert_close(head.bias, alone.bias.detach(), atol=2e-5, rtol=1e-3)


def test_company_changes_nothing() -> None:
    labels, tokens = some_labels(20, 20), some_tokens((1, 2, 3))
    targets = make_targets(lambda i: labels[i], range(N), K, GRID, 2)
    rows = torch.arange(N)
    stacks = [HeadStack([(1,), (2,), (1, 3)], RATES, K, C, 1e-4, CPU), HeadStack([(1, 3)], RATES[1:2], K, C, 1e-4, CPU)]
    for stack in stacks:
        for _ in range(5):
            stack.step({b: x.flatten(0, 1) for b, x in tokens.items()}, targets.rows(rows), 1.0)
    torch.testing.assert_close(stacks[0].weight[2:, 1], stacks[1].weight[:, 0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(stacks[0].bias[2, 1], stacks[1].bias[0, 0], atol=1e-6, rtol=1e-5)


def test_images_without_labels_move_nothing() -> None:
    tokens = some_tokens((1,))
    targets = make_targets(lambda i: np.full((9, 9), 255, np.uint8), range(N), K, GRID, 2)
    stack = HeadStack([(1,)], RATES, K, C, 0.0, CPU)
    stack.step({1: tokens[1].flatten(0, 1)}, targets, 1.0)
    assert not stack.weight.any()
    assert not stack.bias.any()


def test_folding_batchnorm_changes_no_logit() -> None:
    tokens = {b: x * 5 + 3 for b, x in some_tokens((1, 2)).items()}
    statistics = {b: (x.mean((0, 1)), x.flatten(0, 1).std(0).reciprocal()) for b, x in tokens.items()}
    stack = HeadStack([(2,), (1, 2)], RATES, K, C, 0.0, CPU)
    stack.weight.normal_(generator=torch.Generator().manual_seed(0))
    stack.bias.normal_(generator=torch.Generator().manual_seed(1))
    normalised = {b: ((x - statistics[b][0]) * statistics[b][1]).flatten(0, 1) for b, x in tokens.items()}
    for group in (0, 1):
        wanted = stack.logits(group, normalised).view(len(RATES), K, N, -1)[1].permute(1, 2, 0)
        torch.testing.assert_close(
            LinearHead(*stack.folded(group, 1, statistics)).logits(tokens), wanted, atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_head_with_scale_and_shift_is_batchnorm_and_convolution(optimizer: str) -> None:
    """γ, β, drawn weights, a decay a head, every pixel: against nn.BatchNorm2d and nn.Conv2d by autograd."""
    labels, decays = some_labels(21, 30), (0.0, 0.1, 0.02)
    raw = {b: 3 * x + 1 for b, x in some_tokens((1, 2)).items()}
    groups = [(1,), (1, 2)]
    options = {"optimizer": optimizer, "affine": True, "init_std": 0.3, "seed": 5}
    stack = HeadStack(groups, RATES, K, C, decays, CPU, **options)
    starts = stack.weight.clone()
    batches = [torch.randperm(N, generator=torch.Generator().manual_seed(i))[:6] for i in range(9)]
    running = {b: nn.BatchNorm1d(C, affine=False) for b in raw}
    for rows in batches:
        tokens = {b: running[b](x[rows].flatten(0, 1)) for b, x in raw.items()}
        stack.step(tokens, make_targets(lambda i: labels[i], rows.tolist(), K, GRID, 0), 1.0)
    slots = {0: [0], 1: [1, 2]}
    for g, group in enumerate(groups):
        for r, (rate, decay) in enumerate(zip(RATES, decays, strict=True)):
            both = torch.cat([raw[b] for b in group], -1).transpose(1, 2).unflatten(2, GRID)
            norm, head = nn.BatchNorm2d(both.shape[1]), nn.Conv2d(both.shape[1], K, 1)
            head.weight.data = torch.cat([starts[s, r] for s in slots[g]], -1)[..., None, None]
            nn.init.zeros_(head.bias)
            trained = nn.Sequential(norm, head)
            kinds = {"adamw": torch.optim.AdamW, "sgd": lambda p, **kw: torch.optim.SGD(p, momentum=0.9, **kw)}
            descent = kinds[optimizer](trained.parameters(), lr=rate, weight_decay=decay)
            for rows in batches:
                loss = reference_loss(trained(both[rows]), [labels[i] for i in rows])
                descent.zero_grad()
                loss.backward()
                descent.step()
            for have, wanted in (
                (torch.cat([stack.weight[s, r] for s in slots[g]], -1), head.weight[..., 0, 0]),
                (stack.bias[g, r], head.bias),
                (torch.cat([stack.gamma[s, r] for s in slots[g]]), norm.weight),
                (torch.cat([stack.beta[s, r] for s in slots[g]]), norm.bias),
            ):
                torch.testing.assert_close(have, wanted.detach(), atol=5e-5, rtol=1e-3)
            constants = {b: (n.running_mean, (n.running_var + n.eps).rsqrt()) for b, n in running.items()}
            folded = LinearHead(*stack.folded(g, r, constants))
            logits = folded.logits(raw).detach().transpose(1, 2).unflatten(2, GRID)
            torch.testing.assert_close(logits, trained.eval()(both).detach(), atol=1e-3, rtol=1e-3)


def test_first_weights_do_not_depend_on_company() -> None:
    options = {"affine": True, "init_std": 0.1, "seed": 2}
    many = HeadStack([(1,), (2,), (1, 2)], RATES, K, C, 0.0, CPU, **options)
    one = HeadStack([(1, 2)], RATES[:1], K, C, 0.0, CPU, **options)
    assert torch.equal(many.weight[2:, 0], one.weight[:, 0])
    assert torch.equal(many.weight[:, 0], many.weight[:, 2])
    assert not torch.equal(many.weight[0], many.weight[2])


def test_nodes_in_bands_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = some_labels(24, 35)
    whole, _ = gradients(labels, 0)
    monkeypatch.setitem(stacked._CHUNK, "cpu", K * 35 * 5)
    banded, exact = gradients(labels, 0)
    torch.testing.assert_close(banded, whole, atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(banded, exact, atol=1e-7, rtol=1e-5)
