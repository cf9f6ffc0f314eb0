"""Why does discovery fail in late blocks? Each suspect measured at every block, and an intervention for each.

python -m benchmarks.late_blocks NAME=WEIGHTS.safetensors ... [--images 200] [--size 64] > docs/results/late_blocks.md

On composed scenes (``objects: shapes``, seed 2: no study's). Networks are ours, of any training.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.pages import markdown_table
from dinoskip.data.sets.scenes import ScenesConfig, compose
from dinoskip.diagnostics.position_bias import position_bias
from dinoskip.environment import describe
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.files import sha256_file
from dinoskip.models import Backbone, load_backbone
from eval.discovery import is_hit
from eval.tokencut.cut import to_pixels, tokencut

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
    """What a network gives on the scenes: patch tokens, class tokens (N, C) at ``out``, ``query`` and ``key``, grid."""

    tokens: Tokens
    cls: Tokens
    grid: tuple[int, int]
    heads: int
    patch: int


def scenes(count: int, size: int) -> Scenes:
    """``count`` scenes that no study has."""
    config = ScenesConfig(images=count + 4, val_fraction=count / (count + 4), size=size, seed=2, objects="shapes")
    with tempfile.TemporaryDirectory() as folder:
        opened = config.open_detection(compose(config, Path(folder)), "val", None)
        images = [load_pixels(Transform(mode="native"), opened.path(i), 8) for i in range(len(opened))]
        return Scenes(images, [np.asarray(opened.boxes(i), dtype=np.float64) for i in range(len(opened))], size)


def read(backbone: Backbone, data: Scenes, batch: int = 50) -> Read:
    """All read points of all blocks."""
    blocks = list(range(1, backbone.depth + 1))
    normalise = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
    tokens: dict[str, dict[int, list[Tensor]]] = {name: {block: [] for block in blocks} for name in READ_POINTS}
    classes: dict[str, dict[int, list[Tensor]]] = {name: {block: [] for block in blocks} for name in READ_POINTS}
    for at in range(0, len(data.images), batch):
        pixels = normalise(data.images[at : at + batch], data.size, data.size)
        layers = backbone.layers(pixels, blocks, READ_POINTS, "none")
        for name in READ_POINTS:
            for block in blocks:
                one = layers[name][block]
                tokens[name][block].append(one.tokens.float())
                assert one.cls is not None
                classes[name][block].append(one.cls.float())
    grid = (data.size // backbone.patch_size, data.size // backbone.patch_size)
    joined, of_class = (
        {name: {block: torch.cat(parts) for block, parts in by.items()} for name, by in some.items()}
        for some in (tokens, classes)
    )
    return Read(joined, of_class, grid, backbone.num_heads, backbone.patch_size)


# --- suspects ----------------------------------------------------------------------------------------


def mean_cosine(tokens: Tensor) -> float:
    """Mean cosine between different tokens of an image, of (N, T, C)."""
    unit = torch.nn.functional.normalize(tokens, dim=2)
    count = tokens.shape[1]
    return float(((unit.sum(1).square().sum(1) - count) / (count * (count - 1))).mean())


def offset(tokens: Tensor) -> float:
    """Length of an image's mean token by the root mean square length of its tokens: 1 if all are alike."""
    return float((tokens.mean(1).norm(dim=1) / tokens.square().sum(2).mean(1).sqrt()).mean())


def effective_rank(tokens: Tensor) -> float:
    """exp of the entropy of the singular values of an image's centred tokens, mean over images."""
    values = torch.linalg.svdvals((tokens - tokens.mean(1, keepdim=True)).double())
    shares = values / values.sum(1, keepdim=True).clamp_min(1e-300)
    return float((-(shares * shares.clamp_min(1e-300).log()).sum(1)).exp().mean())


def class_likeness(tokens: Tensor, cls: Tensor) -> float:
    """Mean cosine of patches with the class token of their image."""
    return float(torch.nn.functional.cosine_similarity(tokens, cls[:, None], dim=2).mean())


def sink(found: Read, block: int) -> float:
    """Attention that the most attended patch gets, as a multiple of even attention; mean over heads and images."""
    query, key = (
        torch.cat([found.cls[name][block][:, None], found.tokens[name][block]], 1) for name in ("query", "key")
    )
    images, count, width = query.shape
    query, key = (x.view(images, count, found.heads, -1).transpose(1, 2) for x in (query, key))
    attention = (query @ key.transpose(2, 3) * (width // found.heads) ** -0.5).softmax(3)  # (N, heads, T, T)
    return float((attention.mean(2)[..., 1:].max(2).values * count).mean())


def by_position(tokens: Tensor, grid: tuple[int, int]) -> float:
    """Percent of the variance of tokens (N, T, C) that their position in the grid accounts for, over all images."""
    return 100 * position_bias(tokens, grid).position_share


def same_cut(tokens: Tensor, grid: tuple[int, int]) -> float:
    """Mean agreement of the cuts of two images, 0 (no relation) to 1 (every image is cut along the same line)."""
    sides = np.stack([np.sign(tokencut(one, grid, TAU).eigenvector) for one in tokens])
    agreement = np.abs(sides @ sides.T) / sides.shape[1]
    return float((agreement.sum() - len(sides)) / (len(sides) * (len(sides) - 1)))


# --- interventions -----------------------------------------------------------------------------------


def centred(tokens: Tensor) -> Tensor:
    """Without the mean of the image's tokens."""
    return tokens - tokens.mean(1, keepdim=True)


def without_position(tokens: Tensor) -> Tensor:
    """Without the mean of all images' tokens at the same position in the grid."""
    return tokens - tokens.mean(0, keepdim=True)


def without_first_component(tokens: Tensor) -> Tensor:
    """Without the first singular direction of the image's tokens, as they are (mostly their offset)."""
    _, _, directions = torch.linalg.svd(tokens, full_matrices=False)
    first = directions[:, :1]
    return tokens - (tokens @ first.transpose(1, 2)) @ first


def discovered(tokens: Tensor, found: Read, data: Scenes, tau: float = TAU) -> tuple[float, float]:
    """CorLoc and the share of complete graphs, both in percent."""
    cuts = [tokencut(one, found.grid, tau) for one in tokens]
    size = (data.size, data.size)
    hits = [is_hit(to_pixels(cut.box, found.patch, size), boxes) for cut, boxes in zip(cuts, data.boxes, strict=True)]
    return 100 * float(np.mean(hits)), 100 * float(np.mean([cut.complete for cut in cuts]))


def interventions(found: Read, data: Scenes, block: int) -> dict[str, float]:
    """CorLoc of a block as it is, and under each change."""
    key = found.tokens["key"][block]
    changes: Mapping[str, Callable[[], float]] = {
        "as it is": lambda: discovered(key, found, data)[0],
        "centred": lambda: discovered(centred(key), found, data)[0],
        "position mean removed": lambda: discovered(without_position(key), found, data)[0],
        "first component removed": lambda: discovered(without_first_component(key), found, data)[0],
        **{f"τ {tau:g}": lambda tau=tau: discovered(key, found, data, tau)[0] for tau in TAUS},  # type: ignore[misc]
        **{
            f"read at {name}": lambda name=name: discovered(found.tokens[name][block], found, data)[0]  # type: ignore[misc]
            for name in READ_POINTS[1:]
        },
        "read at out, centred": lambda: discovered(centred(found.tokens["out"][block]), found, data)[0],
    }
    return {name: measure() for name, measure in changes.items()}


def suspects(found: Read, data: Scenes, block: int) -> dict[str, float]:
    """What a block's keys and attention are like."""
    key = found.tokens["key"][block]
    return {
        "cosine of keys": mean_cosine(key),
        "offset of keys": offset(key),
        "cosine of outputs": mean_cosine(found.tokens["out"][block]),
        "rank of keys": effective_rank(key),
        "rank of outputs": effective_rank(found.tokens["out"][block]),
        "patches like CLS": class_likeness(found.tokens["out"][block], found.cls["out"][block]),
        "sink": sink(found, block),
        "keys by position, %": by_position(key, found.grid),
        "same cut in all images": same_cut(key, found.grid),
        "complete graphs, %": discovered(key, found, data)[1],
    }


def table(name: str, found: Read, data: Scenes) -> list[str]:
    """Suspects and interventions of a network, a column a block."""
    blocks = sorted(found.tokens["key"])
    measured, changed = ({b: of(found, data, b) for b in blocks} for of in (suspects, interventions))
    lines = [[what, *(f"{measured[b][what]:.2f}" for b in blocks)] for what in measured[blocks[0]]]
    lines += [[f"CorLoc, {what}", *(f"{changed[b][what]:.1f}" for b in blocks)] for what in changed[blocks[0]]]
    return markdown_table([f"{name}, block", *map(str, blocks)], lines)


def main() -> int:
    """Print a table for every network, and what was measured where."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.late_blocks")
    parser.add_argument("networks", nargs="+", metavar="NAME=WEIGHTS")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = scenes(args.images, args.size)
    for text in args.networks:
        name, _, file = text.partition("=")
        found = read(load_backbone(f"weights:{file}"), data)
        print("\n".join(table(name, found, data)))
        print(f"{name}: weights sha256 {sha256_file(Path(file))}\n", flush=True)
    machine = describe()
    print(f"{args.images} scenes of {args.size} pixels; {machine['cores']} cores, torch {machine['torch']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
