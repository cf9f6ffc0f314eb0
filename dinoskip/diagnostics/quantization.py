"""Post-training quantisation as a probe (paper 4, App. D): WnAm by fake quantisation, and distortions.

Uniform and asymmetric, no clipping, no outlier handling: weights one range an output channel, activations one range a
tensor, fixed by a calibration set, at the inputs of the norms and of attention and MLP. Weights first, then
activations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models import Backbone

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


def sites(model: VisionTransformer) -> dict[str, nn.Module]:
    """The modules whose inputs are quantised: norm1, attn, norm2, mlp of every block, and the final norm."""
    found: dict[str, nn.Module] = {}
    for number, block in enumerate(model.blocks, 1):
        for name in ("norm1", "attn", "norm2", "mlp"):
            part = getattr(block, name, None)
            if not isinstance(part, nn.Module):
                raise ConfigError(f"quantisation: block {number} has no {name}", "use a plain pre-norm ViT")
            found[f"{number}.{name}"] = part
    if not isinstance(model.norm, nn.Identity):
        found["norm"] = model.norm
    return found


Ranges = dict[str, tuple[Tensor, Tensor]]


@torch.no_grad()
def calibrate(backbone: Backbone, images: Tensor, batch: int = 16) -> Ranges:
    """Smallest and largest value at every site over ``images`` (B, 3, H, W), normalised."""
    ranges: Ranges = {}

    def watch(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        low, high = inputs[0].aminmax()
        old = ranges.get(name, (low, high))
        ranges[name] = (torch.minimum(old[0], low), torch.maximum(old[1], high))

    handles = [m.register_forward_pre_hook(partial(watch, n)) for n, m in sites(backbone.model).items()]
    try:
        for part in torch.split(images, batch):
            backbone.layers(part, [backbone.depth], norm="final" if "norm" in sites(backbone.model) else "none")
    finally:
        for handle in handles:
            handle.remove()
    return ranges


def quantised(backbone: Backbone, weight_bits: int | None, activation_bits: int | None, images: Tensor) -> Backbone:
    """A copy of ``backbone`` that computes as WnAm: its features are those of the fake-quantised network.

    ``images`` (B, 3, H, W) calibrate the activations' ranges, on the copy with quantised weights; None leaves weights
    or activations alone.
    """
    copied = Backbone.from_model(copy.deepcopy(backbone.model), f"{backbone.spec} W{weight_bits}A{activation_bits}")
    copied.mean, copied.std = backbone.mean, backbone.std
    if weight_bits is not None:
        quantise_weights_(copied.model, weight_bits)
    if activation_bits is not None:

        def rounded(low: Tensor, high: Tensor, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (fake_quantise(inputs[0], activation_bits, low, high), *inputs[1:])

        ranges = calibrate(copied, images)
        for name, module in sites(copied.model).items():
            module.register_forward_pre_hook(partial(rounded, *ranges[name]))
    return copied


@dataclass(frozen=True)
class Distortion:
    """One site: SQNR in dB at each number of bits, over all images."""

    site: str
    sqnr: Mapping[int, float]

    def normalised_mse(self, bits: int) -> float:
        """10^(-SQNR/10)."""
        return float(10 ** (-self.sqnr[bits] / 10))


@torch.no_grad()
def distortions(
    backbone: Backbone, calibration: Tensor, images: Tensor, bits: Sequence[int] = BITS, batch: int = 16
) -> list[Distortion]:
    """SQNR of every site's activations of the float network, rounded with the ranges of ``calibration``.

    One pass over ``images`` for all ``bits``: error and signal energies are summed over batches.
    """
    ranges = calibrate(backbone, calibration, batch)
    noise = {name: torch.zeros(len(bits), dtype=torch.float64) for name in ranges}
    signal = dict.fromkeys(ranges, 0.0)

    def measure(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        signal[name] += float(x.double().square().sum())
        errors = [(x - fake_quantise(x, count, *ranges[name])).double().square().sum() for count in bits]
        noise[name] += torch.stack(errors).cpu()

    found = sites(backbone.model)
    handles = [module.register_forward_pre_hook(partial(measure, name)) for name, module in found.items()]
    try:
        for part in torch.split(images, batch):
            backbone.layers(part, [backbone.depth], norm="final" if "norm" in found else "none")
    finally:
        for handle in handles:
            handle.remove()
    tiny = torch.finfo(torch.float64).tiny
    return [
        Distortion(name, dict(zip(bits, (10 * (signal[name] / errors.clamp_min(tiny)).log10()).tolist(), strict=True)))
        for name, errors in noise.items()
    ]
