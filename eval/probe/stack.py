"""Train many linear heads at once: every block (or sum of blocks) × every learning rate, on frozen tokens.

The loss and its nodes are those of :mod:`eval.probe.targets`. Shapes: S slots (one a block of a group), G groups,
L learning rates, K classes, C channels, n images of T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from dinoskip.runtime.randomness import torch_rng
from eval.labelled import Constants, Key
from eval.probe.optimizer import BETAS, HeadOptimizer
from eval.probe.targets import Targets

_CHUNK = {"cpu": 2**20, "cuda": 2**26}  # upsampled logits held at once: a CPU wants them in its cache

Tokens = Mapping[Key, torch.Tensor]


class HeadStack:
    """Heads for ``groups`` of blocks × learning rates: weights (S, L, K, C) and biases (G, L, K).

    A group names what it reads: keys of the tokens. ``affine`` gives every head BatchNorm's scale γ and shift β,
    (S, L, C): z = W (γ ⊙ x + β) + b. Weights are zero (without γ the problem is convex, it needs no random start) or
    normal with ``init_std``, the same for all rates and whatever else is in the stack. Learning rates and weight decays
    (one, or one a rate; on all parameters, as torch's) are vectors along L: a step is one operation over all heads, and
    each head moves as it would alone. ``betas`` are AdamW's; with ``clip`` a head's gradient is scaled to a norm of at
    most that.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Key, ...]],
        learning_rates: Sequence[float],
        num_classes: int,
        dim: int,
        weight_decay: float | Sequence[float],
        device: torch.device,
        *,
        optimizer: str = "adamw",
        affine: bool = False,
        init_std: float = 0.0,
        seed: int = 0,
        betas: tuple[float, float] = BETAS,
        clip: float | None = None,
    ) -> None:
        self.groups = tuple(groups)
        self.slots = [(g, key) for g, group in enumerate(self.groups) for key in group]
        self.num_classes = num_classes
        heads = (len(learning_rates), num_classes)
        self.weight = torch.zeros(len(self.slots), *heads, dim, device=device)
        if init_std:
            for slot, (g, key) in enumerate(self.slots):
                rng = torch_rng(seed, "probe-init", str(self.groups[g]), str(key))
                self.weight[slot] = init_std * torch.randn(num_classes, dim, generator=rng).to(device)
        self.bias = torch.zeros(len(self.groups), *heads, device=device)
        self.gamma = torch.ones(len(self.slots), heads[0], dim, device=device) if affine else None
        self.beta = torch.zeros_like(self.gamma) if self.gamma is not None else None
        self.parameters = [p for p in (self.weight, self.bias, self.gamma, self.beta) if p is not None]
        self.rates = tuple(learning_rates)
        self.decays = tuple(np.broadcast_to(weight_decay, heads[:1]).tolist())
        self.clip = clip
        self._optimizer = HeadOptimizer(self.parameters, self.rates, self.decays, name=optimizer, betas=betas)

    def _slots_of(self, group: int) -> list[tuple[int, Key]]:
        return [(slot, key) for slot, (g, key) in enumerate(self.slots) if g == group]

    def effective(self, slot: int) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Return W γ (L, K, C) and W β (L, K) of a slot: its head on normalised tokens, without γ and β."""
        weight = self.weight[slot]
        if self.gamma is None or self.beta is None:
            return weight, 0.0
        return weight * self.gamma[slot, :, None], (weight @ self.beta[slot, :, :, None])[..., 0]

    def finite(self) -> torch.Tensor:
        """Return bool (G, L): whether all parameters of a head are finite; those of a diverged one are not."""
        good = self.bias.isfinite().all(2)
        for slot, (group, _) in enumerate(self.slots):
            for part in (self.weight, self.gamma, self.beta):
                if part is not None:
                    good[group] &= part[slot].isfinite().flatten(1).all(1)
        return good

    def logits(self, group: int, tokens: Tokens) -> torch.Tensor:
        """Return (L·K, n·T) of one group, for normalised tokens (n·T, C) of every key.

        Those of a key may be (n, C), one for all tokens of an image.
        """
        total = self.bias[group].reshape(-1, 1)
        most = max(len(tokens[key]) for key in self.groups[group])
        for slot, key in self._slots_of(group):
            weight, shift = self.effective(slot)
            part = weight.flatten(0, 1) @ tokens[key].T
            total = total + (part if part.shape[1] == most else part.repeat_interleave(most // part.shape[1], 1))
            if isinstance(shift, torch.Tensor):
                total = total + shift.reshape(-1, 1)
        return total

    def step(self, tokens: Tokens, targets: Targets, scale: float) -> None:
        """One step of all heads on a batch: tokens (n·T, C) of every key, targets of n; learning rates × ``scale``."""
        # The mean over labelled pixels. mmsegmentation divides by all of them, so that there a batch of which much is
        # ignored has a smaller gradient.
        total = targets.weight.sum().clamp(min=torch.finfo(torch.float32).tiny)  # nothing labelled: no gradient
        mean = Targets(targets.linear / total, targets.weight / total, targets.up, targets.along)
        self.step_with(tokens, lambda logits: self.by_logits(logits, mean), scale)

    def step_with(
        self,
        tokens: Tokens,
        by_logits: Callable[[torch.Tensor], torch.Tensor],
        scale: float,
        *,
        momentum: float | None = None,
    ) -> None:
        """One step of all heads by the gradient of any loss by their logits.

        ``by_logits`` gets the logits (L·K, n·T) of a group and returns that gradient; it is called once a group. See
        :meth:`logits` for ``tokens``, :class:`eval.probe.optimizer.HeadOptimizer` for ``momentum``.
        """
        gradients = [torch.zeros_like(p) for p in self.parameters]
        for group in range(len(self.groups)):
            slope = by_logits(self.logits(group, tokens))
            by_bias = slope.sum(1).view_as(self.bias[group])
            gradients[1][group] = by_bias
            for slot, key in self._slots_of(group):
                each = slope.shape[1] // len(tokens[key])
                of_head = slope if each == 1 else slope.view(len(slope), -1, each).sum(2)
                self._chain(slot, (of_head @ tokens[key]).view_as(self.weight[slot]), by_bias, gradients)
        if self.clip is not None:
            self._clip(gradients, self.clip)
        self._optimizer.step(gradients, scale, momentum)

    def _clip(self, gradients: list[torch.Tensor], most: float) -> None:
        """Scale every head's gradient to a norm of at most ``most``, over all its parameters (``clip_grad_norm_``)."""
        owner = torch.tensor([group for group, _ in self.slots]).to(gradients[0].device, non_blocking=True)
        squares = gradients[1].square().sum(2)
        for gradient in (gradients[0], *gradients[2:]):
            squares = squares.index_add(0, owner, gradient.square().flatten(2).sum(2))
        factor = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)  # (G, L)
        gradients[1].mul_(factor[..., None])
        for gradient in (gradients[0], *gradients[2:]):
            gradient.mul_(factor[owner].view(*gradient.shape[:2], *[1] * (gradient.ndim - 2)))

    def _chain(
        self, slot: int, by_effective: torch.Tensor, by_bias: torch.Tensor, gradients: list[torch.Tensor]
    ) -> None:
        """Write the gradients by W, γ and β of a slot, given those by W γ (L, K, C) and by b + W β (L, K)."""
        if self.gamma is None or self.beta is None:
            gradients[0][slot] = by_effective
            return
        weight = self.weight[slot]
        by_shift = by_bias[..., None]
        gradients[0][slot] = by_effective * self.gamma[slot, :, None] + by_shift * self.beta[slot, :, None]
        gradients[2][slot] = (by_effective * weight).sum(1)
        gradients[3][slot] = (by_shift * weight).sum(1)

    def by_logits(self, logits: torch.Tensor, targets: Targets) -> torch.Tensor:
        """Gradient (L·K, n·T) of the batch's loss by the logits, a few images and rows of nodes at a time."""
        count, classes, h, w = targets.linear.shape
        z = logits.view(-1, classes, count, h, w)
        gradient = torch.empty_like(z)
        rows, columns = targets.weight.shape[1:]
        room = _CHUNK[z.device.type] // (z.shape[0] * classes * columns)  # rows of nodes
        images, band = max(1, room // rows), max(1, min(room, rows))
        for at in range(0, count, images):
            part = slice(at, at + images)
            if targets.up is None or targets.along is None:
                gradient[:, :, part] = torch.softmax(z[:, :, part], 1).mul_(targets.weight[part])
                continue
            wide = z[:, :, part] @ targets.along.T
            mass = torch.zeros_like(wide)
            for top in range(0, rows, band):
                up = targets.up[top : top + band]
                mass += up.T @ torch.softmax(up @ wide, 1).mul_(targets.weight[part, top : top + band])
            gradient[:, :, part] = mass @ targets.along
        return gradient.sub_(targets.linear.transpose(0, 1)).view_as(logits)

    def folded(self, group: int, rate: int, statistics: Constants) -> tuple[dict[Key, torch.Tensor], torch.Tensor]:
        """Return the weights (K, C) of every key and the bias (K,) of one head on tokens as they are.

        BatchNorm is folded in; ``statistics[key]`` = (mean, 1 / deviation), each (C,).
        """
        weights: dict[Key, torch.Tensor] = {}
        bias = self.bias[group, rate].double()
        for slot, key in self._slots_of(group):
            mean, inverse = (x.double() for x in statistics[key])
            weight, shift = self.effective(slot)
            scaled = weight[rate].double() * inverse
            bias = bias - scaled @ mean + (shift[rate].double() if isinstance(shift, torch.Tensor) else 0.0)
            weights[key] = scaled.float().cpu()
        return weights, bias.float().cpu()
