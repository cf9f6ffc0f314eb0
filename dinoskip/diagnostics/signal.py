"""Propagation of signals in fresh networks: with skips, without them, and without but initialised for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from dinoskip.errors import ConfigError, DataError
from dinoskip.init import calibrated_, skipless_, trunc_normal_
from dinoskip.init.config import paper_init
from dinoskip.io.images import read_image
from dinoskip.models.attention_sites import attentions
from dinoskip.models.build import create_model
from dinoskip.models.rank_collapse import effective_rank, token_cosine
from dinoskip.models.skip_weight import weigh_skips_
from dinoskip.models.vit import embed
from dinoskip.settings.vit_config import SkipWeight

PHOTOS = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg")
STARTS = ("default", "paper", "calibrated, mixing")
ROWS = ("skip", "skipless default", "skipless initialised")
_CLASSES = 10  # more than PHOTOS: each has a label of its own


@dataclass(frozen=True)
class SignalRow:
    """One fresh network; tuples run over blocks 1..depth."""

    name: str
    """skip, skipless default or skipless initialised; along the dial, start and weight of the skips."""
    token_cosine: tuple[float, ...]
    """Mean cosine between different tokens of an image, after norm1."""
    effective_rank: tuple[float, ...]
    """Effective rank of an image's tokens, after norm1."""
    query_gradient: tuple[float, ...]
    """Frobenius norm of dL/dW^Q, L a cross-entropy on the class token."""
    final_cosine: float
    """Token cosine after the final norm."""
    final_effective_rank: float
    """Effective rank after the final norm."""


def bundled_photos(count: int = 4, img_size: int = 224) -> Tensor:
    """Up to four photographs that come with scikit-image, centre-cropped, normalised: float64 (count, 3, S, S).

    Raises :class:`DataError` if they are not installed and :class:`ConfigError` for another count.
    """
    import skimage  # heavy, for its photographs alone

    if not 1 <= count <= len(PHOTOS):
        raise ConfigError(f"{count} photographs were asked for, 1 to {len(PHOTOS)} are bundled")
    folder = Path(skimage.__file__).parent / "data"
    for name in PHOTOS[:count]:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: scikit-image came without its photographs", "give images of your own")
    return torch.stack([as_input(read_image(folder / name), img_size) for name in PHOTOS[:count]])


def as_input(pixels: np.ndarray, size: int) -> Tensor:
    """The centre square of uint8 (H, W, 3) pixels at ``size`` × ``size``, normalised: float64 (3, size, size)."""
    mean, std = (
        torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    )
    image = torch.from_numpy(pixels).permute(2, 0, 1).double() / 255
    height, width = image.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[None, :, top : top + side, left : left + side]
    small = F.interpolate(square, size=(size, size), mode="bicubic", antialias=True, align_corners=False)
    return (small[0].clamp(0, 1) - mean) / std


def signal_table(
    images: Tensor,
    depth: int = 12,
    *,
    name: str = "vit_small_patch16",
    seed: int = 0,
) -> list[SignalRow]:
    """Token similarity and query gradients, block by block, of three fresh networks that differ in skips and init only.

    ``images`` (B, 3, S, S) are ImageNet-normalised photographs, two to four are enough. Everything runs in float64, so
    that a gradient of 1e-15 is a measurement. The loss is the cross-entropy of a random 10-class head on the normed
    class token, image i having label i mod 10. Embeddings and head are the same in the three networks.
    """
    rows = []
    for label in ROWS:
        model = create_model(
            name, skip=label == "skip", depth=depth, img_size=images.shape[-1], num_classes=_CLASSES, weight_init="skip"
        ).double()
        trunc_normal_(model, seed)
        if label == "skipless initialised":
            skipless_(model, seed=seed)
        rows.append(_measure(label, model, images.double()))
    return rows


def dial_table(
    images: Tensor,
    weights: Sequence[SkipWeight],
    depth: int = 12,
    *,
    name: str = "vit_small_patch16",
    seed: int = 0,
) -> list[SignalRow]:
    """Measure, as :func:`signal_table` does, fresh networks of three starts at each weight of their skips.

    A start is that of the network without skips, so that along the dial its skips alone differ: timm's default, the
    paper's, and the calibrated one with heads that mix, which is measured on ``images``.
    """
    rows, paper = [], paper_init(name)
    for start in STARTS:
        model = create_model(
            name, skip=False, depth=depth, img_size=images.shape[-1], num_classes=_CLASSES, weight_init="skip"
        ).double()
        trunc_normal_(model, seed)
        if start == "paper":
            skipless_(model, paper.alpha, paper.beta, paper.c, seed=seed)
        elif start != "default":
            calibrated_(model, images.double(), mixing_heads=1, seed=seed)
        for weight in weights:
            weigh_skips_(model, weight.weights(weight.end, depth))
            falling = "1 to " if weight.sublayers == "linear" else ""
            rows.append(_measure(f"{start}, {falling}{weight.end:g}", model, images.double()))
    return rows


def _measure(label: str, model: VisionTransformer, images: Tensor) -> SignalRow:
    tokens = embed(model, images)
    cosines, ranks = [], []
    for block in model.blocks:
        normed = block.get_submodule("norm1")(tokens)
        cosines.append(token_cosine(normed))
        ranks.append(effective_rank(normed))
        tokens = block(tokens)
    final = model.norm(tokens)
    loss = F.cross_entropy(model.forward_head(final), torch.arange(len(images)) % _CLASSES)
    queries, parameters = [attention.query for attention in attentions(model)], dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, [parameters[query.name] for query in queries])
    return SignalRow(
        name=label,
        token_cosine=tuple(cosines),
        effective_rank=tuple(ranks),
        query_gradient=tuple(
            float(torch.linalg.matrix_norm(gradient[query.start : query.stop]))
            for query, gradient in zip(queries, gradients, strict=True)
        ),
        final_cosine=token_cosine(final),
        final_effective_rank=effective_rank(final),
    )
