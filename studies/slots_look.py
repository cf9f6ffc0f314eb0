"""Measurements beside the result rows: the share of position in every block's keys, the similarity of tokens, PCA.

python -m studies.slots_look NAME=WEIGHTS ... --data FOLDER --out DIR [--size 224] [--images 128]

WEIGHTS may be a pattern; networks without a file are left out. The networks read the photographs with boxes, as
squares. ``look.csv`` has a row for each network and measure and a column for each block; ``pca.png`` has the first
three components of the last block's output, a row for each network.
"""

from __future__ import annotations

import argparse
import glob
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from benchmarks.pages import read_csv, write_csv
from dinoskip.diagnostics.position_bias import position_bias
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.models import Backbone, load_backbone
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.runtime.console import log
from dinoskip.runtime.distributed import choose_device
from visualize.pca import PatchPCA, to_rgb

LOOK, STRIP = "look.csv", "pca.png"
SHARE, COSINE = "keys by position, %", "cosine of tokens"
SHOWN = 10  # images of the strip
_CELL = 6  # pixels of a patch in the strip
_BATCH = 32
Tokens = dict[str, dict[int, Tensor]]  # by facet and block: (N, T, C), float32 on the CPU


@torch.inference_mode()
def read(backbone: Backbone, images: Sequence[Tensor], size: int) -> Tokens:
    """Keys and outputs of every block."""
    blocks = list(range(1, backbone.depth + 1))
    normalise = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
    parts: dict[str, dict[int, list[Tensor]]] = {name: {block: [] for block in blocks} for name in ("key", "out")}
    for at in range(0, len(images), _BATCH):
        layers = backbone.layers(normalise(images[at : at + _BATCH], size, size), blocks, ("key", "out"), "none")
        for name, by_block in parts.items():
            for block in blocks:
                by_block[block].append(layers[name][block].tokens.float().cpu())
    return {name: {block: torch.cat(every) for block, every in by.items()} for name, by in parts.items()}


def measured(tokens: Tokens, grid: tuple[int, int], device: torch.device) -> dict[str, dict[int, float]]:
    """Return the percent of the keys' variance due to position and the mean cosine of outputs, by measure and block."""
    shares = {block: 100 * position_bias(key.to(device), grid).position_share for block, key in tokens["key"].items()}
    return {SHARE: shares, COSINE: {block: token_cosine(out) for block, out in tokens["out"].items()}}


def strip(tokens: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
    """The first components of tokens (N, T, C) of the first images, side by side, uint8 (H, W, 3)."""
    first = tokens[:SHOWN]
    fitted = PatchPCA(3).fit(first.flatten(0, 1))
    colours = to_rgb(fitted.transform(first.flatten(0, 1)).reshape(len(first), *grid, 3))
    return np.concatenate(list(colours), axis=1).repeat(_CELL, 0).repeat(_CELL, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the networks that have weights; 1 if none has."""
    parser = argparse.ArgumentParser(prog="python -m studies.slots_look")
    parser.add_argument("networks", nargs="+", metavar="NAME=WEIGHTS")
    parser.add_argument("--data", type=Path, required=True, help="folder of images")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(argv)
    device, rows, strips = choose_device(args.device), list[dict[str, str]](), list[NDArray[np.uint8]]()
    files = sorted(args.data.glob("*.webp"))
    chosen = [files[i] for i in np.linspace(0, len(files) - 1, min(args.images, len(files))).astype(int)]
    for text in args.networks:
        name, _, pattern = text.partition("=")
        if not (weights := sorted(glob.glob(pattern))):
            log.warning("slot: %s: no file of weights, not looked at", pattern)
            continue
        backbone = load_backbone(f"weights:{weights[-1]}", device=device)
        images = [load_pixels(Transform(size=args.size), path, backbone.patch_size) for path in chosen]
        grid = (args.size // backbone.patch_size, args.size // backbone.patch_size)
        tokens = read(backbone, images, args.size)
        for measure, by_block in measured(tokens, grid, device).items():
            cells = {str(block): f"{value:.4g}" for block, value in by_block.items()}
            rows.append({"network": name, "measure": measure, **cells})
        strips.append(strip(tokens["out"][backbone.depth], grid))
    if not rows:
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    write_csv(args.out / LOOK, list(rows[0]), rows)
    Image.fromarray(np.concatenate(strips)).save(args.out / STRIP)
    return 0


def read_look(folder: Path) -> list[dict[str, str]]:
    """The rows of a slot, none where it was not looked."""
    path = folder / LOOK
    return read_csv(path) if path.is_file() else []


if __name__ == "__main__":
    sys.exit(main())
