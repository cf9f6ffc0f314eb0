"""Post-training quantisation as a probe (paper 4, App. D): WnAm by fake quantisation, and distortions.

Uniform and asymmetric, no clipping, no outlier handling: weights one range an output channel, activations one range a
tensor, fixed by a calibration set, at the inputs of the norms and of attention and MLP. Weights first, then
activations.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dinoskip.errors import ConfigError
from dinoskip.io.files import hash_of
from dinoskip.models import Backbone
from dinoskip.models.attention_sites import attentions, mlps

BITS = (4, 5, 6, 7, 8, 10, 12, 14, 16)


@torch.no_grad()
def fake_quantise(x: Tensor, bits: int, low: Tensor, high: Tensor) -> Tensor:
    """Round ``x`` to 2^bits levels spaced evenly between ``low`` and ``high``, which broadcast against it.

    The zero point is an integer, so 0 stays 0 where it is in range; values outside take the nearest end. A range of
    no width leaves ``x`` as it is.
    """
    levels = 2**bits - 1
    step = (high - low) / levels
    safe = torch.where(step > 0, step, 1.0)
    zero = (-low / safe).round()
    rounded = ((x / safe).round() + zero).clamp(0, levels)
    return torch.where(step > 0, (rounded - zero) * safe, x)


@torch.no_grad()
def quantise_weights_(module: nn.Module, bits: int) -> None:
    """Fake-quantise the weight of every Linear and convolution in place, each output channel by its own range.

    Biases and norms stay.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            rows = part.weight.data.flatten(1)
            low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
            part.weight.data.copy_(fake_quantise(rows, bits, low, high).view_as(part.weight))


def sqnr(x: Tensor, quantised: Tensor) -> float:
    """10 log10 (‖x‖² / ‖x - x̂‖²) in dB; inf where they are equal."""
    error = float((x.double() - quantised.double()).square().sum())
    return math.inf if error == 0 else 10 * math.log10(float(x.double().square().sum()) / error)


def normalised_mse(x: Tensor, quantised: Tensor) -> float:
    """‖x - x̂‖² / ‖x‖²."""
    return float((x.double() - quantised.double()).square().sum() / x.double().square().sum())


_FINAL = ("norm", "fc_norm", "layernorm", "post_layernorm")
See = Callable[[str, Tensor], Tensor | None]


def attach(backbone: Backbone, see: See) -> list[RemovableHandle]:
    """Call ``see(site, x)`` at every site of each pass; a tensor that it returns takes the place of x.

    Sites are ``b.norm1``, ``b.attn``, ``b.norm2`` and ``b.mlp`` for what enters these parts of block b, and ``norm``
    for what enters the last norm, if there is one. What enters attention and MLP is what the norms before them give.
    Of a network that is read level by level: what enters each attention and each MLP, by the name of its module.
    Raises :class:`ConfigError` for blocks that do not have two norms, and where there is no attention and no MLP.
    """

    def entering(site: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        seen = see(site, inputs[0])
        return None if seen is None else (seen, *inputs[1:])

    def leaving(site: str, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        return see(site, output)

    handles: list[RemovableHandle] = []
    if not backbone.num_heads:
        names = [site.name for site in attentions(backbone.model)] + [site.name for site in mlps(backbone.model)]
        modules = {name: backbone.model.get_submodule(name) for name in names}
        handles += [module.register_forward_pre_hook(partial(entering, name)) for name, module in modules.items()]
        if not names:
            raise ConfigError(f"{backbone.spec}: activations are rounded at attention and MLP, and it has none known")
        return handles
    for number, block in enumerate(backbone.adapter.blocks, 1):
        norms = [part for part in block.children() if "Norm" in type(part).__name__]
        if len(norms) != 2:
            raise ConfigError(f"quantisation: block {number} has {len(norms)} norms, not two", "use a pre-norm ViT")
        for norm, before, after in zip(norms, ("norm1", "norm2"), ("attn", "mlp"), strict=True):
            handles.append(norm.register_forward_pre_hook(partial(entering, f"{number}.{before}")))
            handles.append(norm.register_forward_hook(partial(leaving, f"{number}.{after}")))
    for name in _FINAL:
        last = getattr(backbone.model, name, None)
        if isinstance(last, nn.Module) and not isinstance(last, nn.Identity):
            handles.append(last.register_forward_pre_hook(partial(entering, "norm")))
    return handles


@torch.no_grad()
def _watch(backbone: Backbone, images: Tensor, batch: int, see: See) -> None:
    """Pass images (B, 3, H, W), normalised, and show ``see`` every site."""
    handles = attach(backbone, see)
    try:
        for part in torch.split(images, batch):
            if not backbone.num_heads:
                backbone.model(part.to(backbone.device, backbone.dtype))
                continue
            tokens, context = backbone.adapter.embed(part.to(backbone.device, backbone.dtype))
            for index in range(backbone.depth):
                tokens = backbone.adapter.run_block(index, tokens, context)
            backbone.adapter.final_norm(tokens)
    finally:
        for handle in handles:
            handle.remove()


Ranges = dict[str, tuple[Tensor, Tensor]]


def calibrate(backbone: Backbone, images: Tensor, batch: int = 16) -> Ranges:
    """Smallest and largest value at every site over ``images`` (B, 3, H, W), normalised."""
    ranges: Ranges = {}

    def see(site: str, x: Tensor) -> None:
        low, high = x.aminmax()
        old = ranges.get(site, (low, high))
        ranges[site] = (torch.minimum(old[0], low), torch.maximum(old[1], high))

    _watch(backbone, images, batch, see)
    return ranges


def quantised(backbone: Backbone, weight_bits: int | None, activation_bits: int | None, images: Tensor) -> Backbone:
    """A copy of ``backbone`` that computes as WnAm, for any evaluation: its features are the fake-quantised network's.

    ``images`` (B, 3, H, W), normalised, calibrate the activations' ranges, on the copy with quantised weights; None
    leaves weights or activations alone. With ``norm="final"``, tokens of earlier blocks pass the
    rounding before the last norm, too. The copy has another ``weights_hash``, so its features are never taken for
    those of the original.
    """
    label = wnam(weight_bits, activation_bits)
    copied = copy.deepcopy(backbone)
    if label == AS_IT_IS:
        return copied
    copied.spec = f"{backbone.spec} {label}"
    if weight_bits is not None:
        quantise_weights_(copied.model, weight_bits)
    ranges: Ranges = {}
    if activation_bits is not None:
        bits, ranges = activation_bits, calibrate(copied, images)
        attach(copied, lambda site, x: fake_quantise(x, bits, *ranges[site]))
    limits = {site: (float(low), float(high)) for site, (low, high) in ranges.items()}
    copied.weights_hash = hash_of([backbone.weights_hash, label, limits])
    return copied


AS_IT_IS = "as it is"


def wnam(weight_bits: int | None, activation_bits: int | None) -> str:
    """``W4A8``; 32 for what is left alone, and "as it is" for a network of which everything is."""
    return f"W{weight_bits or 32}A{activation_bits or 32}" if weight_bits or activation_bits else AS_IT_IS


def bits_of(label: str) -> tuple[int | None, int | None]:
    """Bits of weights and activations of ``W8A12``, of ``W8`` or ``A12`` alone; 32 is what is left alone.

    ValueError for anything else, and for bits outside 2 to 16.
    """
    match = re.fullmatch(r"(?:W(\d+))?(?:A(\d+))?", label)
    bits = [int(part) if part and int(part) != 32 else None for part in match.groups()] if match and label else [0]
    if any(width is not None and not 2 <= width <= 16 for width in bits):
        raise ValueError(f"{label!r} is not a precision such as W8A12, W16A8 or A6, of 2 to 16 bits")
    return bits[0], bits[1]


@dataclass(frozen=True)
class Distortion:
    """One site: SQNR in dB at each number of bits, over all images."""

    site: str
    sqnr: Mapping[int, float]

    def normalised_mse(self, bits: int) -> float:
        """Error over signal power, 10^(-SQNR/10): 0 where nothing is lost."""
        return float(10 ** (-self.sqnr[bits] / 10))


def distortions(
    backbone: Backbone, calibration: Tensor, images: Tensor, bits: Sequence[int] = BITS, batch: int = 16
) -> list[Distortion]:
    """SQNR of every site's activations of the float network, rounded with the ranges of ``calibration``.

    One pass over ``images`` for all ``bits``: error and signal energies are summed over batches.
    """
    ranges = calibrate(backbone, calibration, batch)
    noise = {site: torch.zeros(len(bits), dtype=torch.float64) for site in ranges}
    signal = dict.fromkeys(ranges, 0.0)

    def see(site: str, x: Tensor) -> None:
        signal[site] += float(x.double().square().sum())
        errors = [(x - fake_quantise(x, count, *ranges[site])).double().square().sum() for count in bits]
        noise[site] += torch.stack(errors).cpu()

    _watch(backbone, images, batch, see)
    tiny = torch.finfo(torch.float64).tiny
    return [
        Distortion(name, dict(zip(bits, (10 * (signal[name] / errors.clamp_min(tiny)).log10()).tolist(), strict=True)))
        for name, errors in noise.items()
    ]
