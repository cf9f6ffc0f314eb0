"""A calibrated initialisation of skipless ViTs: what averaging cannot remove is measured on images and subtracted.

Attention averages tokens; a component that all tokens share survives every average, and GELU's positive mean and the
embedding's mean add to it in every block, so tokens and images become alike. Biases can subtract it, once it is known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.init.assign import LAYERS, Assignments, PlainBlock, assign, in_place, plain_blocks
from dinoskip.init.config import CalibratedInit
from dinoskip.init.default import default_tensors
from dinoskip.init.orthogonal import haar
from dinoskip.init.skipless import fused_qkv
from dinoskip.models.vit import embed
from dinoskip.runtime.console import log
from dinoskip.runtime.randomness import torch_rng

_CHUNK = 8
"""Images that go through a block together; the first ones decide the attention's temperature."""
_BISECTIONS = 24  # of 0..max_scale, by default 4: to 4 / 2^24, about the resolution of float32
_MIXING = 0.5
"""Singular values of W^Q and W^K of heads that average: logits of a standard deviation of about 1/4."""


@torch.no_grad()
def calibrated_tensors(
    model: nn.Module, settings: CalibratedInit, seed: int, images: Tensor, others: Mapping[str, Tensor]
) -> Assignments:
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
    with _on_a_single_thread():
        work = copy.deepcopy(model).to("cpu", torch.float64).eval()
        assign(work, others.items())
        return iter(_Calibrated(work, images.to("cpu", torch.float64), settings, seed).run(blocks))


class _Calibrated:
    """One pass over the network, block by block; ``work`` (float64) holds what has been decided."""

    def __init__(self, work: VisionTransformer, images: Tensor, settings: CalibratedInit, seed: int) -> None:
        self.work, self.settings, self.seed = work, settings, seed
        self.chunks = list(torch.split(images, _CHUNK))
        self.first_patch = int(work.num_prefix_tokens)
        self.decided: dict[str, Tensor] = {}

    def run(self, blocks: list[PlainBlock]) -> list[tuple[str, Tensor]]:
        """Calibrate block by block and return every assigned tensor by name."""
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
        name, dim, heads, settings = f"{plain.prefix}.attn", plain.dim, plain.num_heads, self.settings
        if settings.mixing_heads > heads:
            raise ConfigError(f"calibrated_: {name} has {heads} heads, mixing_heads={settings.mixing_heads}")
        norm1, attn = (self.work.get_submodule(f"{plain.prefix}.{part}") for part in ("norm1", "attn"))
        key = torch.stack([haar(dim, dim // heads, self._rng(name, "query_key", head)) for head in range(heads)])
        normed = norm1(self.chunks[0])
        query = key
        if index == 0 and self.work.has_class_token:
            direction = F.normalize(normed[0, 0], dim=0)
            query = key - direction[:, None] * (direction @ key)[:, None, :]
        scale = attention_scale(normed, query, key, settings.diagonal, settings.max_scale, self.first_patch)
        query, key = scale**0.5 * query, scale**0.5 * key
        for head in self._mixing(index, heads):
            query[head] = _MIXING * haar(dim, dim // heads, self._rng(name, "mixing_query", head))
            key[head] = _MIXING * haar(dim, dim // heads, self._rng(name, "mixing_key", head))
        value = settings.c * haar(dim, dim, self._rng(name, "value"))
        self._set(f"{name}.qkv.weight", fused_qkv(query, key, value))
        self._set(f"{name}.proj.weight", settings.c * haar(dim, dim, self._rng(name, "output")))
        self._set(f"{name}.qkv.bias", torch.zeros(3 * dim, dtype=torch.float64))
        self._set(f"{name}.proj.bias", torch.zeros(dim, dtype=torch.float64))
        outputs = [attn(norm1(chunk)) for chunk in self.chunks]
        shift = -settings.centring * self._mean(outputs)
        self._set(f"{name}.proj.bias", shift)
        self._advance([output + shift for output in outputs], keep=plain.skips_attention)

    def _mixing(self, index: int, heads: int) -> range:
        """The heads of block ``index`` (from 0) that average at the start."""
        last = (index + 1) % self.settings.mixing_every == 0
        return range(heads - self.settings.mixing_heads if last else heads, heads)

    def _mlp(self, plain: PlainBlock) -> None:
        name = f"{plain.prefix}.mlp"
        norm2, mlp = (self.work.get_submodule(f"{plain.prefix}.{part}") for part in ("norm2", "mlp"))
        fc1, fc2 = plain.layers["mlp.fc1"], plain.layers["mlp.fc2"]
        if self.settings.mlp == "mirrored":
            up, down = self._mirrored(name, plain)
        else:
            up = self.settings.gain * self._haar_like(fc1.weight, name, "fc1")
            down = self._haar_like(fc2.weight, name, "fc2")
        self._set(f"{name}.fc1.weight", up)
        self._set(f"{name}.fc2.weight", down)
        for layer, linear in (("fc1", fc1), ("fc2", fc2)):
            self._set(f"{name}.{layer}.bias", torch.zeros(linear.out_features, dtype=torch.float64))
        outputs = [mlp(norm2(chunk)) for chunk in self.chunks]
        shift = -self.settings.centring * self._mean(outputs)
        squares = torch.cat([(output[:, self.first_patch :] + shift).square().mean((1, 2)) for output in outputs])
        scale = squares.mean().sqrt().reciprocal()
        self._set(f"{name}.fc2.weight", scale * self.decided[f"{name}.fc2.weight"])
        self._set(f"{name}.fc2.bias", scale * shift)
        self._advance([scale * (output + shift) for output in outputs], keep=plain.skips_mlp)

    def _mirrored(self, name: str, plain: PlainBlock) -> tuple[Tensor, Tensor]:
        """Weights of fc1 (4 n, D) and fc2 (D, 4 n): n units, their mirror images, and 2 n that bend."""
        hidden, dim = plain.layers["mlp.fc1"].weight.shape
        units, remainder = divmod(hidden, 4)
        if remainder or units < dim:
            raise ConfigError(
                f"calibrated_: {name} has {hidden} hidden units for a width of {dim}",
                "mlp=mirrored needs a multiple of 4, at least 4 times the width; mlp=orthogonal takes any",
            )
        spread = haar(units, dim, self._rng(name, "spread"))
        rotation = haar(dim, dim, self._rng(name, "rotation"))
        up = 2 * self.settings.gain * haar(2 * units, dim, self._rng(name, "fc1"))
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


def drawn_by_default(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """The default values of all parameters that :func:`calibrated_` does not assign from the start."""
    drawn = {
        f"{block.prefix}.{layer}.{kind}"
        for block in plain_blocks(model, "calibrated_")
        for layer in LAYERS
        for kind in ("weight", "bias")
    }
    return dict(default_tensors(model, seed, without=drawn))


calibrated_ = in_place(calibrated_tensors, CalibratedInit, needs=("images",), without=("count",), keeps_others=True)


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
    diagonal = logits.diagonal(first_patch, -2, -1)
    differences = logits - diagonal[..., None]

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
def _on_a_single_thread() -> Iterator[None]:
    """Sums in one order, whatever the number of threads around."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
