"""Train many linear heads at once: every block (or sum of blocks) × every learning rate, on frozen tokens.

The loss of a head is the cross-entropy of its logits z (K, h, w), upsampled bilinearly to the label, averaged over
the labelled pixels. With U the upsampling and Y the one-hot labels its sum is

    sum_p logsumexp_k (U z_k)_p  -  sum_k <Y_k, U z_k>   =   sum_p logsumexp_k (U z_k)_p  -  sum_k <Uᵀ Y_k, z_k>

The second term needs only Uᵀ Y, K numbers a token, made once from the label at its full size: it is exact. The first
is smooth in p and is taken at nodes: the token centres and ``refine`` - 1 points between each two, along both axes;
each labelled pixel's weight is spread bilinearly on them. As the token centres are among the nodes, U factors through
them and no token gains or loses weight: the loss is never below the exact one (Jensen: logsumexp is convex), equal
where pixels fall on nodes, and nears it as 1 / refine². ``refine`` 1 is cross-entropy of tokens with soft labels.

Shapes: S slots (one a block of a group), G groups, L learning rates, K classes, C channels, n images of T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from eval.heads import LinearHead, interpolation, pixel_centres

_CHUNK = {"cpu": 2**20, "cuda": 2**26}  # upsampled logits held at once: a CPU wants them in its cache
_BETAS, _EPS = (0.9, 0.999), 1e-8  # AdamW's own defaults


@dataclass(frozen=True)
class Targets:
    """What the loss needs of N labels: ``linear`` (N, K, h, w) = Uᵀ Y and ``weight`` (N, nodes, nodes), both float32.

    An image's weights add up to the labelled part of its pixels, so every image counts by what is labelled of it and
    not by its size; for labels of one size this is the mean over pixels.
    """

    linear: torch.Tensor
    weight: torch.Tensor
    refine: int

    def to(self, device: torch.device) -> Targets:
        """Return a copy on another device."""
        return Targets(self.linear.to(device), self.weight.to(device), self.refine)


def make_targets(
    label: Callable[[int], NDArray[np.uint8]],
    rows: Sequence[int],
    num_classes: int,
    grid: tuple[int, int],
    refine: int,
) -> Targets:
    """Read the label maps uint8 (H, W) of ``rows``; values that are not classes are ignored."""
    h, w = grid
    to_rows, to_columns = (node_interpolation(cells, refine) for cells in grid)
    linear = torch.zeros(len(rows), num_classes, h, w)
    weight = torch.zeros(len(rows), len(to_rows), len(to_columns))
    for at, row in enumerate(rows):
        values = torch.from_numpy(np.ascontiguousarray(label(row)))
        present = torch.bincount(values.flatten(), minlength=256)[:num_classes].nonzero()[:, 0]
        down, across = (_spread(size, cells, refine) for size, cells in zip(values.shape, grid, strict=True))
        onehot = (values == present[:, None, None].to(values.dtype)).float() / values.numel()
        fine = down.T @ (onehot @ across)
        weight[at] = fine.sum(0)
        linear[at, present] = to_rows.T @ (fine @ to_columns)
    return Targets(linear, weight, refine)


def node_interpolation(cells: int, refine: int) -> torch.Tensor:
    """Return float32 (nodes, cells): from tokens along one axis to the nodes of the loss, refine·(cells - 1) + 1."""
    return interpolation(torch.arange(refine * (cells - 1) + 1, dtype=torch.float64) / refine, cells)


def _spread(size: int, cells: int, refine: int) -> torch.Tensor:
    """From nodes to pixels along one axis; transposed, it spreads pixels on nodes."""
    return interpolation(pixel_centres(size, cells) * refine, refine * (cells - 1) + 1)


class HeadStack:
    """Heads for ``groups`` of blocks × learning rates: weights (S, L, K, C) and biases (G, L, K), from zero.

    The problem is convex, so it needs no random start. Learning rates are a vector along L: the AdamW step (betas
    0.9, 0.999, eps 1e-8; decay on weights and biases, as torch's) is one operation over all heads, and each head moves
    as it would alone.
    """

    def __init__(
        self,
        groups: Sequence[tuple[int, ...]],
        learning_rates: Sequence[float],
        num_classes: int,
        dim: int,
        weight_decay: float,
        device: torch.device,
    ) -> None:
        self.groups = tuple(groups)
        self.slots = [(g, block) for g, group in enumerate(self.groups) for block in group]
        self.num_classes = num_classes
        heads = (len(learning_rates), num_classes)
        self.weight = torch.zeros(len(self.slots), *heads, dim, device=device)
        self.bias = torch.zeros(len(self.groups), *heads, device=device)
        self.rates = torch.tensor(learning_rates, dtype=torch.float64, device=device)
        self.weight_decay = weight_decay
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in (self.weight, self.bias)]
        self._steps = 0

    def logits(self, group: int, tokens: dict[int, torch.Tensor]) -> torch.Tensor:
        """Return (L·K, n·T) of one group, for normalised tokens (n·T, C) of every block."""
        total = self.bias[group].reshape(-1, 1)
        for slot, (g, block) in enumerate(self.slots):
            if g == group:
                total = total + self.weight[slot].flatten(0, 1) @ tokens[block].T
        return total

    def step(self, tokens: dict[int, torch.Tensor], targets: Targets, rows: torch.Tensor, scale: float) -> None:
        """One AdamW step of all heads on images ``rows`` of ``targets``, learning rates × ``scale``."""
        weight_grad, bias_grad = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        linear, weight = targets.linear[rows], targets.weight[rows]
        total = weight.sum().clamp(min=torch.finfo(torch.float32).tiny)  # nothing labelled: no gradient
        for group in range(len(self.groups)):
            gradient = self._gradient(self.logits(group, tokens), linear / total, weight / total, targets.refine)
            bias_grad[group] = gradient.sum(1).view_as(bias_grad[group])
            for slot, (g, block) in enumerate(self.slots):
                if g == group:
                    weight_grad[slot] = (gradient @ tokens[block]).view_as(weight_grad[slot])
        self._steps += 1
        for parameter, grad, moments in zip(
            (self.weight, self.bias), (weight_grad, bias_grad), self._moments, strict=True
        ):
            self._adamw(parameter, grad, *moments, scale)

    def _gradient(self, logits: torch.Tensor, linear: torch.Tensor, weight: torch.Tensor, refine: int) -> torch.Tensor:
        """Gradient (L·K, n·T) of the batch's loss by the logits, a few images at a time."""
        count, classes, h, w = linear.shape
        z = logits.view(-1, classes, count, h, w)
        gradient = torch.empty_like(z)
        up, along = (node_interpolation(cells, refine).to(z.device) for cells in (h, w))
        chunk = max(1, _CHUNK[z.device.type] // (z.shape[0] * classes * len(up) * len(along)))
        for at in range(0, count, chunk):
            part = slice(at, at + chunk)
            fine = z[:, :, part] if refine == 1 else up @ (z[:, :, part] @ along.T)
            mass = torch.softmax(fine, 1).mul_(weight[part])
            gradient[:, :, part] = mass if refine == 1 else up.T @ (mass @ along)
        return gradient.sub_(linear.transpose(0, 1)).view_as(logits)

    def _adamw(
        self, parameter: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, scale: float
    ) -> None:
        rates = (self.rates * scale).view(1, -1, *[1] * (parameter.ndim - 2))
        parameter.mul_((1 - rates * self.weight_decay).float())
        first.lerp_(grad, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
        root = second.sqrt().div_(math.sqrt(1 - _BETAS[1] ** self._steps)).add_(_EPS)
        parameter.sub_(first.div(root).mul_((rates / (1 - _BETAS[0] ** self._steps)).float()))

    def folded(self, group: int, rate: int, statistics: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> LinearHead:
        """Return one head with BatchNorm folded in; ``statistics[block]`` = (mean, 1 / deviation), each (C,)."""
        weights: dict[int, torch.Tensor] = {}
        bias = self.bias[group, rate].double()
        for slot, (g, block) in enumerate(self.slots):
            if g == group:
                mean, inverse = (x.double() for x in statistics[block])
                scaled = self.weight[slot, rate].double() * inverse
                bias = bias - scaled @ mean
                weights[block] = scaled.float().cpu()
        return LinearHead(weights, bias.float().cpu())


def cosine_scale(step: int, steps: int) -> float:
    """Return the factor on the learning rate: 1 at the first of ``steps``, falling to 0 after the last."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))
