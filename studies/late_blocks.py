# Frozen: rows docs/results/late_blocks/rows.csv, commit ea8f645b, 2026-11-26.
"""Causes of failed discovery in late blocks: each suspect measured at every block, and an intervention for each.

python -m studies.late_blocks NETWORK_sSEED=WEIGHTS.safetensors ... [--images 100] [--size 64]
python -m studies.late_blocks

On composed scenes (``objects: shapes``, seed 2: no study's). Networks are ours, of any training. Measures are added to
docs/results/late_blocks/rows.csv, and the page is written from it alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.diagnostics.position_bias import position_bias
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.io.files import sha256_file
from dinoskip.models import Backbone, load_backbone
from dinoskip.models.rank_collapse import effective_rank, token_cosine
from eval.discovery import is_hit
from eval.tokencut.cut import TokenCuts, to_pixels, tokencut
from studies.late_blocks_page import add_rows, write_page

READ_POINTS = ("key", "query", "value", "attn", "mlp", "out")
TAU = 0.2
TAUS = (0.1, 0.3, 0.5, 0.7)

Tokens = dict[str, dict[int, Tensor]]  # by read point and block: (N, T, C), float32


@dataclass(frozen=True)
class Scenes:
    """Images uint8 (3, S, S), and the boxes (K, 4) of each."""

    images: Sequence[Tensor]
    boxes: Sequence[NDArray[np.float64]]
    size: int


@dataclass(frozen=True)
class Read:
    """A network's features of the scenes: patch tokens, class tokens (N, C) at ``out``, ``query`` and ``key``, grid."""

    tokens: Tokens
    cls: Tokens
    grid: tuple[int, int]
    heads: int
    patch: int


def scenes(count: int, size: int) -> Scenes:
    """``count`` scenes that no study has."""
    config = ScenesConfig(images=count + 4, val_fraction=count / (count + 4), size=size, seed=2, objects="shapes")
    with tempfile.TemporaryDirectory() as folder:
        opened = config.open_detection(config.generate(Path(folder)), "val", None)
        images = [load_pixels(Transform(mode="native"), opened.path(i), 8) for i in range(len(opened))]
        return Scenes(images, [np.asarray(opened.boxes(i), dtype=np.float64) for i in range(len(opened))], size)


def read(backbone: Backbone, data: Scenes, batch: int = 50) -> Read:
    """Read the tokens of every block at every read point."""
    blocks = list(range(1, backbone.depth + 1))
    normalise = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
    tokens: dict[str, dict[int, list[Tensor]]] = {name: {block: [] for block in blocks} for name in READ_POINTS}
    classes: dict[str, dict[int, list[Tensor]]] = {name: {block: [] for block in blocks} for name in READ_POINTS}
    for at in range(0, len(data.images), batch):
        pixels = normalise(data.images[at : at + batch], data.size, data.size)
        layers = backbone.layers(pixels, blocks, READ_POINTS, "none")
        for name in READ_POINTS:
            for block in blocks:
                layer = layers[name][block]
                tokens[name][block].append(layer.tokens.float())
                assert layer.cls is not None
                classes[name][block].append(layer.cls.float())
    grid = (data.size // backbone.patch_size, data.size // backbone.patch_size)
    joined, of_class = (
        {name: {block: torch.cat(parts) for block, parts in by.items()} for name, by in read_tokens.items()}
        for read_tokens in (tokens, classes)
    )
    return Read(joined, of_class, grid, backbone.num_heads, backbone.patch_size)


# --- suspects ----------------------------------------------------------------------------------------


def offset(tokens: Tensor) -> float:
    """Length of an image's mean token by the root mean square length of its tokens: 1 if all are alike."""
    return float((tokens.mean(1).norm(dim=1) / tokens.square().sum(2).mean(1).sqrt()).mean())


def class_likeness(tokens: Tensor, cls: Tensor) -> float:
    """Mean cosine of patches with the class token of their image."""
    return float(torch.nn.functional.cosine_similarity(tokens, cls[:, None], dim=2).mean())


def sink(read: Read, block: int) -> float:
    """Attention that the most attended patch gets, as a multiple of even attention; mean over heads and images."""
    query, key = (torch.cat([read.cls[name][block][:, None], read.tokens[name][block]], 1) for name in ("query", "key"))
    images, count, width = query.shape
    query, key = (x.view(images, count, read.heads, -1).transpose(1, 2) for x in (query, key))
    attention = (query @ key.transpose(2, 3) * (width // read.heads) ** -0.5).softmax(3)  # (N, heads, T, T)
    return float((attention.mean(2)[..., 1:].max(2).values * count).mean())


def by_position(tokens: Tensor, grid: tuple[int, int]) -> float:
    """Percent of the variance of tokens (N, T, C) that their position in the grid accounts for, over all images."""
    return 100 * position_bias(tokens, grid).position_share


def cut(tokens: Tensor, grid: tuple[int, int], tau: float = TAU) -> TokenCuts:
    """TokenCut of every image of (N, T, C)."""
    cuts = tokencut(tokens, grid, tau)
    assert isinstance(cuts, TokenCuts)
    return cuts


def same_cut(cuts: TokenCuts) -> float:
    """Mean agreement of the cuts of two images that have one, 0 (no relation) to 1 (all are cut along the same line).

    nan of fewer than two such images.
    """
    sides = np.sign(cuts.eigenvector[cuts.is_cut])
    if len(sides) < 2:
        return float("nan")
    agreement = np.abs(sides @ sides.T) / sides.shape[1]
    return float((agreement.sum() - len(sides)) / (len(sides) * (len(sides) - 1)))


# --- interventions -----------------------------------------------------------------------------------


def centred(tokens: Tensor) -> Tensor:
    """Subtract the mean of each image's tokens (B, N, C)."""
    return tokens - tokens.mean(1, keepdim=True)


def without_position(tokens: Tensor) -> Tensor:
    """Subtract the mean of all images' tokens at the same position of the grid."""
    return tokens - tokens.mean(0, keepdim=True)


def without_first_component(tokens: Tensor) -> Tensor:
    """Remove the first singular direction of each image's tokens, not centred (mostly their offset)."""
    _, _, directions = torch.linalg.svd(tokens, full_matrices=False)
    first = directions[:, :1]
    return tokens - (tokens @ first.transpose(1, 2)) @ first


def corloc(cuts: TokenCuts, patch: int, data: Scenes) -> float:
    """Percent of images whose box hits an object."""
    size = (data.size, data.size)
    hits = [is_hit(to_pixels(box, patch, size), boxes) for box, boxes in zip(cuts.box, data.boxes, strict=True)]
    return 100 * float(np.mean(hits))


def measures(read: Read, data: Scenes, block: int) -> dict[str, float]:
    """Return measures of a block's keys and attention, then CorLoc without changes and under each change."""
    key, out = read.tokens["key"][block], read.tokens["out"][block]
    cuts = cut(key, read.grid)
    changed = {
        "centred": centred(key),
        "position mean removed": without_position(key),
        "first component removed": without_first_component(key),
        **{f"read at {name}": read.tokens[name][block] for name in READ_POINTS[1:]},
        "read at out, centred": centred(out),
    }
    by_tau = {tau: corloc(cut(key, read.grid, tau), read.patch, data) for tau in TAUS}
    return {
        "cosine of keys": token_cosine(key),
        "offset of keys": offset(key),
        "cosine of outputs": token_cosine(out),
        "rank of keys": effective_rank(centred(key)),
        "rank of outputs": effective_rank(centred(out)),
        "patches like CLS": class_likeness(out, read.cls["out"][block]),
        "sink": sink(read, block),
        "keys by position, %": by_position(key, read.grid),
        "same cut in all images": same_cut(cuts),
        "complete graphs, %": 100 * float(np.mean([cut.complete for cut in cuts])),
        "CorLoc, as it is": corloc(cuts, read.patch, data),
        **{f"CorLoc, τ {tau:g}": value for tau, value in by_tau.items()},
        **{f"CorLoc, {name}": corloc(cut(tokens, read.grid), read.patch, data) for name, tokens in changed.items()},
    }


def rows_of(run: str, weights: Path, data: Scenes) -> list[dict[str, str]]:
    """A row for each measure of a network, a column for each block."""
    features = read(load_backbone(f"weights:{weights}"), data)
    by_block = {block: measures(features, data, block) for block in sorted(features.tokens["key"])}
    about = {"run": run, "weights": sha256_file(weights)}
    return [
        {**about, "measure": name, **{str(block): f"{by_block[block][name]:.2f}" for block in by_block}}
        for name in by_block[1]
    ]


def main() -> int:
    """Measure the networks named, add their rows, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m studies.late_blocks")
    parser.add_argument("networks", nargs="*", metavar="NETWORK_sSEED=WEIGHTS")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.networks:
        data = scenes(args.images, args.size)
        for text in args.networks:
            run, _, file = text.partition("=")
            add_rows(run, rows_of(run, Path(file), data))
    write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
