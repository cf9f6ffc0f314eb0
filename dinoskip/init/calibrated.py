"""A calibrated initialisation of skipless ViTs: what averaging cannot remove is measured on images and subtracted.

Attention averages tokens; a component that all tokens share survives every average, and GELU's positive mean and the
embedding's mean add to it in every block, so tokens and images become alike. Biases can subtract it, once it is known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.config import Added, Config, Positive
from dinoskip.console import log
from dinoskip.errors import ConfigError
from dinoskip.init.assign import LAYERS, Assignments, PlainBlock, assign, plain_blocks
from dinoskip.init.default import default_tensors
from dinoskip.init.orthogonal import haar
from dinoskip.init.skipless import fused_qkv
from dinoskip.models.vit import embed
from dinoskip.randomness import torch_rng

Mlp = Literal["orthogonal", "mirrored"]
_CHUNK = 8
"""Images that go through a block together; the first ones decide the attention's temperature."""
_BISECTIONS = 24
_MIXING = 0.5
"""Singular values of W^Q and W^K of heads that average: logits of a standard deviation of about 1/4."""


@dataclass(frozen=True)
class Calibration:
    """The numbers of :func:`calibrated_`, which explains them."""

    centring: float = 0.5
    gain: float = 1.0
    diagonal: float = 0.5
    max_scale: float = 4.0
    c: float = 3.0
    mlp: Mlp = "orthogonal"
    mixing_heads: int = 0
    mixing_every: int = 4

    def mixing(self, index: int, heads: int) -> range:
        """The heads of block ``index`` (from 0) that average at the start."""
        first = heads - self.mixing_heads if (index + 1) % self.mixing_every == 0 else heads
        return range(first, heads)


class CalibratedInit(Config):
    """See :func:`dinoskip.init.calibrated_`."""

    name: Literal["calibrated"] = "calibrated"
    images: str | None = Field(
        None, min_length=1, description="data set of the study that it is calibrated on; null: the one trained on"
    )
    count: int = Field(32, ge=2, description="training images, evenly spread over the set, as centre crops of img_size")
    centring: float = Field(0.5, ge=0, le=1, description="share of each mean that the biases subtract")
    gain: Positive = Field(1.0, description="singular values of fc1")
    diagonal: float = Field(0.5, gt=0, lt=1, description="median attention of a patch to itself that is aimed at")
    max_scale: float = Field(4.0, gt=0, description="largest singular value of a head's W^Q W^K^T")
    c: Positive = Field(3.0, description="singular values of W^V and W^O")
    mlp: Annotated[Mlp, Added()] = Field(
        "orthogonal", description="how MLPs start; mirrored: half of the hidden units add up to a rotation"
    )
    mixing_heads: Annotated[int, Added()] = Field(
        0, ge=0, description="heads that average over all tokens at the start, in every mixing_every-th block"
    )
    mixing_every: Annotated[int, Added()] = Field(4, ge=1, description="blocks from one with mixing_heads to the next")

    def tensors(self, model: nn.Module, seed: int, images: Tensor) -> Assignments:
        """What this method assigns, given ``images`` (B, 3, S, S), normalised."""
        drawn = {f"{block.prefix}.{layer}.{kind}" for block in plain_blocks(model, "calibrated_")
                 for layer in LAYERS for kind in ("weight", "bias")}  # fmt: skip
        start = dict(default_tensors(model, seed, without=drawn))
        numbers = Calibration(**self.model_dump(exclude={"name", "images", "count"}))
        return calibrated_tensors(model, images, numbers, start, seed=seed)


def calibrated_(
    model: nn.Module,
    images: Tensor,
    *,
    centring: float = 0.5,
    gain: float = 1.0,
    diagonal: float = 0.5,
    max_scale: float = 4.0,
    c: float = 3.0,
    mlp: Mlp = "orthogonal",
    mixing_heads: int = 0,
    mixing_every: int = 4,
    seed: int = 0,
) -> nn.Module:
    """Initialise attention and MLP of every block, and the patch embedding's bias, in place; returns the model.

    ``images``: float (B, 3, H, W), normalised, 16 or more photographs of the kind that the network will see. Row
    convention (``y = x W``), block by block, x being the tokens that the block receives:

    1. The patch embedding's bias is lowered by the mean embedded patch.
    2. W^Q_i = W^K_i = √s P_i, P_i a Haar semi-orthogonal D × dh matrix per head; W^V and W^O are ``c`` times Haar
       orthogonal. s is such that the median attention of a patch to itself is ``diagonal``, at most ``max_scale``.
    3. In block 1, where the CLS token is the same for all images, W^Q loses the direction of the normed CLS token,
       which then attends to all tokens alike.
    4. W^O's bias is -``centring`` times the mean attention output over images and patches.
    5. fc1 has all singular values ``gain`` and no bias, fc2 is semi-orthogonal, its bias -``centring`` times the mean
       output; both are divided by the output's root mean square.

    With ``mlp="mirrored"`` step 5 starts from fc1 = [P, -P, W] and fc2 = [Pᵀ R; -Pᵀ R; V], with P Pᵀ = 1 and R from
    Haar. GELU(a) - GELU(-a) = a, so the first half of the hidden units adds up to a rotation: its mean is 0 and its
    Jacobian orthogonal (looks-linear initialisation, Balduzzi et al. 2017). The other half bends: W has singular values
    2 ``gain``, V is semi-orthogonal times what makes its output, without its mean, as large as the rotation's. That
    this be a half, and as large, is **ours** (docs/results/initialisations.md).

    With ``mixing_heads`` the last so many heads of every ``mixing_every``-th block have W^Q_i and W^K_i that are
    independent, Haar, of singular values 1/2, and so average over all tokens, almost evenly: tokens that look at
    themselves alone stay apart but learn little of their surroundings. One of three heads in blocks 4, 8 and 12, and of
    24 blocks in 8, 16 and 24, was the best of those tried: **ours** (docs/results/initialisations.md).

    Only biases, s and the scale of fc2 depend on the images. All else is left as it is. Computed in float64 by one
    thread of the CPU, drawn from ``seed`` and the layers' names, cast last: the same bits for the same seed, images and
    kind of processor. Signals and gradients travel well and dense features stay alive; accuracy is not better
    (docs/initialisations.md).

    Raises :class:`ConfigError` for settings out of range, blocks outside the papers (LayerScale, q/k norm, gates,
    other attention or MLP), layers without biases, and images that are not finite.
    """
    if mixing_heads < 0 or mixing_every < 1:
        raise ConfigError(
            f"calibrated_: mixing_heads={mixing_heads}, mixing_every={mixing_every}", "at least 0 heads, every block"
        )
    if not 0 <= centring <= 1 or not 0 < diagonal < 1 or min(gain, max_scale, c) <= 0:
        raise ConfigError(
            f"calibrated_: centring={centring}, diagonal={diagonal}, gain={gain}, max_scale={max_scale}, c={c}",
            "centring in 0..1, diagonal between 0 and 1, the others above 0",
        )
    present = {name: parameter.detach() for name, parameter in model.named_parameters()}
    numbers = Calibration(centring, gain, diagonal, max_scale, c, mlp, mixing_heads, mixing_every)
    assign(model, calibrated_tensors(model, images, numbers, present, seed=seed))
    return model


@torch.no_grad()
def calibrated_tensors(
    model: nn.Module, images: Tensor, numbers: Calibration, start: Mapping[str, Tensor], *, seed: int
) -> Assignments:
    """What :func:`calibrated_` assigns; ``start`` are the values of all parameters that it does not draw."""
    blocks = plain_blocks(model, "calibrated_")
    assert isinstance(model, VisionTransformer)
    bare = [f"{block.prefix}.{layer}" for block in blocks for layer in LAYERS if block.layers[layer].bias is None]
    if model.patch_embed.proj.bias is None or bare:
        raise ConfigError(
            f"calibrated_: {(bare or ['patch_embed.proj'])[0]} has no bias", "build the model with biases"
        )
    if images.ndim != 4 or len(images) < 1 or not bool(images.isfinite().all()):
        raise ConfigError(f"calibrated_: images {tuple(images.shape)} must be finite and (B, 3, H, W)")
    if any(block.skips_attention or block.skips_mlp for block in blocks):
        log.warning("calibrated_: this network has skip connections, which the initialisation is not made for")
    with _one_thread():
        work = copy.deepcopy(model).to("cpu", torch.float64).eval()
        assign(work, start.items())
        return iter(_Calibrated(work, images.to("cpu", torch.float64), numbers, seed).run(blocks))


class _Calibrated:
    """One pass over the network, block by block; ``work`` (float64) holds what has been decided."""

    def __init__(self, work: VisionTransformer, images: Tensor, numbers: Calibration, seed: int) -> None:
        self.work, self.numbers, self.seed = work, numbers, seed
        self.chunks = list(torch.split(images, _CHUNK))
        self.first_patch = int(work.num_prefix_tokens)
        self.decided: dict[str, Tensor] = {}

    def run(self, blocks: list[PlainBlock]) -> list[tuple[str, Tensor]]:
        """Every tensor by name."""
        bias = self.work.patch_embed.proj.bias
        means = [self.work.patch_embed(chunk).flatten(0, -2) for chunk in self.chunks]
        self._set("patch_embed.proj.bias", bias - torch.cat(means).mean(0))
        self.chunks = [embed(self.work, chunk) for chunk in self.chunks]  # tokens from here on
        for index, plain in enumerate(blocks):
            self._attention(index, plain)
            self._mlp(plain)
        return list(self.decided.items())

    def _set(self, name: str, tensor: Tensor) -> None:
        self.decided[name] = tensor
        assign(self.work, [(name, tensor)])

    def _attention(self, index: int, plain: PlainBlock) -> None:
        name, dim, heads, numbers = f"{plain.prefix}.attn", plain.dim, plain.num_heads, self.numbers
        if numbers.mixing_heads > heads:
            raise ConfigError(f"calibrated_: {name} has {heads} heads, mixing_heads={numbers.mixing_heads}")
        norm1, attn = (self.work.get_submodule(f"{plain.prefix}.{part}") for part in ("norm1", "attn"))
        key = torch.stack([haar(dim, dim // heads, self._rng(name, "query_key", head)) for head in range(heads)])
        normed = norm1(self.chunks[0])
        query = key
        if index == 0 and self.work.has_class_token:
            direction = F.normalize(normed[0, 0], dim=0)
            query = key - direction[:, None] * (direction @ key)[:, None, :]
        scale = attention_scale(normed, query, key, numbers.diagonal, numbers.max_scale, self.first_patch)
        query, key = scale**0.5 * query, scale**0.5 * key
        for head in numbers.mixing(index, heads):
            query[head] = _MIXING * haar(dim, dim // heads, self._rng(name, "mixing_query", head))
            key[head] = _MIXING * haar(dim, dim // heads, self._rng(name, "mixing_key", head))
        value = numbers.c * haar(dim, dim, self._rng(name, "value"))
        self._set(f"{name}.qkv.weight", fused_qkv(query, key, value))
        self._set(f"{name}.proj.weight", numbers.c * haar(dim, dim, self._rng(name, "output")))
        self._set(f"{name}.qkv.bias", torch.zeros(3 * dim, dtype=torch.float64))
        self._set(f"{name}.proj.bias", torch.zeros(dim, dtype=torch.float64))
        outputs = [attn(norm1(chunk)) for chunk in self.chunks]
        shift = -numbers.centring * self._mean(outputs)
        self._set(f"{name}.proj.bias", shift)
        self._advance([output + shift for output in outputs], keep=plain.skips_attention)

    def _mlp(self, plain: PlainBlock) -> None:
        name = f"{plain.prefix}.mlp"
        norm2, mlp = (self.work.get_submodule(f"{plain.prefix}.{part}") for part in ("norm2", "mlp"))
        fc1, fc2 = plain.layers["mlp.fc1"], plain.layers["mlp.fc2"]
        if self.numbers.mlp == "mirrored":
            up, down = self._mirrored(name, plain)
        else:
            up = self.numbers.gain * self._haar_like(fc1.weight, name, "fc1")
            down = self._haar_like(fc2.weight, name, "fc2")
        self._set(f"{name}.fc1.weight", up)
        self._set(f"{name}.fc2.weight", down)
        for layer, linear in (("fc1", fc1), ("fc2", fc2)):
            self._set(f"{name}.{layer}.bias", torch.zeros(linear.out_features, dtype=torch.float64))
        outputs = [mlp(norm2(chunk)) for chunk in self.chunks]
        shift = -self.numbers.centring * self._mean(outputs)
        squares = torch.cat([(output[:, self.first_patch :] + shift).square().mean((1, 2)) for output in outputs])
        scale = squares.mean().sqrt().reciprocal()
        self._set(f"{name}.fc2.weight", scale * self.decided[f"{name}.fc2.weight"])
        self._set(f"{name}.fc2.bias", scale * shift)
        self._advance([scale * (output + shift) for output in outputs], keep=plain.skips_mlp)

    def _mirrored(self, name: str, plain: PlainBlock) -> tuple[Tensor, Tensor]:
        """Weights of fc1 (4 n, D) and fc2 (D, 4 n): n units, their mirror images, and 2 n that bend."""
        hidden, dim = plain.layers["mlp.fc1"].weight.shape
        units, rest = divmod(hidden, 4)
        if rest or units < dim:
            raise ConfigError(
                f"calibrated_: {name} has {hidden} hidden units for a width of {dim}",
                "mlp=mirrored needs a multiple of 4, at least 4 times the width; mlp=orthogonal takes any",
            )
        spread = haar(units, dim, self._rng(name, "spread"))
        rotation = haar(dim, dim, self._rng(name, "rotation"))
        up = 2 * self.numbers.gain * haar(2 * units, dim, self._rng(name, "fc1"))
        down = haar(dim, 2 * units, self._rng(name, "fc2"))
        norm2 = self.work.get_submodule(f"{plain.prefix}.norm2")
        outputs = [F.gelu(norm2(chunk) @ up.T) @ down.T for chunk in self.chunks]
        mean = self._mean(outputs)
        squares = [(output[:, self.first_patch :] - mean).square().mean((1, 2)) for output in outputs]
        size = torch.cat(squares).mean().sqrt()
        return torch.cat([spread, -spread, up]), torch.cat([rotation @ spread.T, -rotation @ spread.T, down / size], 1)

    def _mean(self, outputs: list[Tensor]) -> Tensor:
        """Mean over images and patches, (D,)."""
        return torch.cat([output[:, self.first_patch :].mean(1) for output in outputs]).mean(0)

    def _advance(self, outputs: list[Tensor], *, keep: float) -> None:
        """Make ``outputs`` the tokens, added to what was there, of which the skip ``keep``-s this share."""
        pairs = zip(self.chunks, outputs, strict=True)
        self.chunks = [keep * tokens + output if keep else output for tokens, output in pairs]

    def _haar_like(self, weight: Tensor, *place: str) -> Tensor:
        return haar(weight.shape[0], weight.shape[1], self._rng(*place))

    def _rng(self, *place: str | int) -> torch.Generator:
        return torch_rng(self.seed, "init", *place)


def attention_scale(
    tokens: Tensor, query: Tensor, key: Tensor, target: float, largest: float, first_patch: int
) -> float:
    """The factor s on the logits at which the median attention of a patch to itself is ``target``, or ``largest``.

    ``tokens`` (B, N, D) are LayerNormed, ``query`` and ``key`` (heads, D, dh); the median is over images, heads and the
    tokens from ``first_patch`` on. By bisection, to 2^-24 of ``largest``.
    """
    width = query.shape[-1]
    queries = torch.einsum("bnd,hde->bhne", tokens[:, first_patch:], query)
    keys = torch.einsum("bnd,hde->bhne", tokens, key)
    logits = queries @ keys.mT / width**0.5  # (B, heads, patches, N)
    own = logits.diagonal(first_patch, -2, -1)
    differences = logits - own[..., None]

    def median(scale: float) -> float:
        return float((scale * differences).exp().sum(-1).reciprocal().median())

    if median(largest) <= target:
        return largest
    low, high = 0.0, largest
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if median(middle) < target else (low, middle)
    return (low + high) / 2


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order, whatever the number of threads around."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
