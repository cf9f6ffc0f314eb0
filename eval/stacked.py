"""Parts that stacks of linear heads share (:mod:`eval.probe.stack`): their inputs, first weights, held-out images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.results.rows import EvalResult
from dinoskip.runtime.randomness import numpy_rng, torch_rng
from dinoskip.settings.read_points import ReadAt, blocks_at, usual_norm
from eval.labelled import Constants, Key
from eval.probe.stack import HeadStack

Group = tuple[Key, ...]


def groups_of(
    blocks: Sequence[int], several: Sequence[int] | None, *, cls: bool, facets: Sequence[str] = ("out",)
) -> list[Group]:
    """Return what each head reads: every block alone, then ``several`` together; with the class tokens if ``cls``.

    The same again at every one of ``facets``.
    """
    kinds = ("patches", "cls") if cls else ("patches",)
    numbers = [*((block,) for block in blocks), *([tuple(several)] if several else [])]
    return [
        tuple((str(ReadAt(kind, facet)), block) for block in group for kind in kinds)
        for facet in facets
        for group in numbers
    ]


def name_of(group: Group) -> str:
    """``"3"``, or ``"3+6+9+12"``."""
    return "+".join(str(block) for kind, block in group if ReadAt.parse(kind).of == "patches")


def read_like(template: EvalResult, group: Group) -> EvalResult:
    """``template`` at the facet of a group; ``template.norm`` is that of block outputs."""
    facet = ReadAt.parse(group[0][0]).facet
    return replace(template, facet=facet, norm=usual_norm(facet, template.norm))


def place_of(stack: HeadStack, group: Group, name: str) -> str:
    """``name`` (blocks) with the facet in front, ``mlp 3``, if that is not the first of the stack."""
    facet, first = (ReadAt.parse(keys[0][0]).facet for keys in (group, stack.groups[0]))
    return blocks_at(facet, first, name)


def draw_uniform(stack: HeadStack, seed: int) -> None:
    """Draw weights and biases as PyTorch does for a convolution of all channels of a group: ± 1 / √channels.

    The same for all rates, and whatever else is in the stack.
    """
    channels = stack.weight.shape[-1]
    for number, group in enumerate(stack.groups):
        bound = (channels * len(group)) ** -0.5
        rng = torch_rng(seed, "head-bias", str(group))
        stack.bias[number] = (bound * (2 * torch.rand(stack.num_classes, generator=rng) - 1)).to(stack.bias.device)
    for slot, (number, key) in enumerate(stack.slots):
        bound = (channels * len(stack.groups[number])) ** -0.5
        rng = torch_rng(seed, "head-weight", str(stack.groups[number]), str(key))
        values = bound * (2 * torch.rand(stack.num_classes, channels, generator=rng) - 1)
        stack.weight[slot] = values.to(stack.weight.device)


def held_out(count: int, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of training images that heads are fitted on, and of those on which they are chosen."""
    order = numpy_rng(seed, "head-holdout").permutation(count)
    held = min(count - 1, max(1, round(share * count))) if share and count > 1 else 0
    return np.sort(order[held:]), np.sort(order[:held])


def folded_heads(
    stack: HeadStack, chosen: Sequence[int], constants: Constants | None = None
) -> dict[str, torch.Tensor]:
    """Return the ``chosen`` trial of every group as tensors by name; on features as they are.

    BatchNorm's ``constants`` (mean and 1 / deviation of every key) are folded in, where there are any.

    ``block3.bias`` (K,), ``block3.3.patches.weight`` and ``block3.3.cls.weight`` (K, C); ``block3+6.6.cls.weight``;
    of other facets than the stack's first ``blockmlp 3.bias``.
    """
    if constants is None:
        zero = torch.zeros_like(stack.weight[0, 0, 0])
        constants = {key: (zero, torch.ones_like(zero)) for _, key in stack.slots}
    tensors: dict[str, torch.Tensor] = {}
    for group, (keys, rate) in enumerate(zip(stack.groups, chosen, strict=True)):
        weights, bias = stack.folded(group, rate, constants)
        name = f"block{place_of(stack, keys, name_of(keys))}"
        tensors[f"{name}.bias"] = bias
        for (kind, block), weight in weights.items():
            tensors[f"{name}.{block}.{ReadAt.parse(kind).of}.weight"] = weight
    return tensors
