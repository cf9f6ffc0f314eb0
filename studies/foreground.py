# Frozen: rows docs/gallery.md, commit 4c8aabfa, 2026-11-25.
"""Rules for the foreground's side of the first principal component, the fit of their masks, and outlying norms.

The masks of a data set define the foreground (any class but the background; of COCO-Stuff any thing). Over groups of
images the script counts how often each rule takes the side whose mask has the higher IoU, at every block:

- skewness: the side with the long tail (the rule of :class:`visualize.pca.PatchPCA` itself)
- border: the side that is rarer at the border (:func:`visualize.foreground.border_sign`)
- attention: the side that the CLS token attends to more

It also prints the mean IoU of the foreground by the border rule, that of the right side, and that of all tokens; then,
by block, the share and the norm of outlying tokens.

Run: python -m studies.foreground --backbone SPEC --data VOCDEVKIT [--kind voc] [--images 96] [--group 8]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dinoskip.data import sets
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.models import load_backbone
from dinoskip.models.attention import cls_attention
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.settings.config import RawConfig, validate
from visualize.foreground import border_sign, count_outliers
from visualize.pca import PatchPCA

THINGS = {"voc": range(1, 21), "coco_stuff": range(80)}
RULES = ("skewness", "border", "attention")


def truth(label: np.ndarray, kind: str, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Foreground and counted pixels as shares of the cells of a grid: float (h, w) each."""
    rows = np.arange(label.shape[0]) * grid[0] // label.shape[0]
    columns = np.arange(label.shape[1]) * grid[1] // label.shape[1]
    things, counted = np.zeros(grid), np.zeros(grid)
    np.add.at(things, (rows[:, None], columns[None]), np.isin(label, list(THINGS[kind])).astype(float))
    np.add.at(counted, (rows[:, None], columns[None]), (label != 255).astype(float))
    return things, counted


def iou(masks: Sequence[np.ndarray], truths: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """IoU in pixels over images, of masks whose cells are whole."""
    hit = sum(float(things[mask].sum()) for mask, (things, _) in zip(masks, truths, strict=True))
    union = sum(
        float(counted[mask].sum() + things[~mask].sum()) for mask, (things, counted) in zip(masks, truths, strict=True)
    )
    return hit / union if union else 0.0


def signs(scores: Sequence[np.ndarray], attention: Sequence[np.ndarray] | None) -> dict[str, float]:
    """The sign that each rule gives the scores (h, w) of the images of a group."""
    sign_by_rule = {"skewness": 1.0, "border": border_sign(scores)}
    if attention is not None:
        weights, values = np.concatenate([a.ravel() for a in attention]), np.concatenate([s.ravel() for s in scores])
        sign_by_rule["attention"] = -1.0 if (weights * values).sum() / weights.sum() < values.mean() else 1.0
    return sign_by_rule


def main() -> None:
    """Print how often each rule finds the right side, by network and by block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--kind", default="voc", choices=sorted(THINGS))
    parser.add_argument("--split", default="val")
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    tree = {"dataset": {"kind": args.kind, "root": args.data}}
    config: Any = validate(OneDataset, RawConfig(tree, {"": "command line"})).dataset
    labelled = sets.open_labels(SEGMENTATION, config, args.split)
    count = min(args.images, len(labelled)) // args.group * args.group
    backbone = load_backbone(args.backbone)
    size = args.size // backbone.patch_size * backbone.patch_size
    transform, blocks = Transform(mode="square", size=size), list(range(1, backbone.depth + 1))
    to_input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
    right: dict[tuple[int, str], list[bool]] = defaultdict(list)
    fits: dict[tuple[int, str], list[float]] = defaultdict(list)
    every: dict[int, list[np.ndarray]] = defaultdict(list)
    for start in range(0, count, args.group):
        chosen = range(start, start + args.group)
        pixels = [load_pixels(transform, Path(labelled.path(i)), backbone.patch_size) for i in chosen]
        images = to_input(pixels, size, size)
        with torch.inference_mode():
            layers = backbone.layers(images, blocks)
            attended = cls_attention(backbone, images, blocks)
        grid = layers[1].grid
        truths = [truth(np.asarray(labelled.label(i)), args.kind, grid) for i in chosen]
        for block in blocks:
            tokens = layers[block].tokens.double().numpy().reshape(args.group, *grid, -1)
            every[block].extend(tokens.astype(np.float32))
            scores = list(PatchPCA(1).fit(tokens).transform(tokens)[..., 0])
            maps = None if attended is None else list(attended[block].mean(1).numpy().reshape(args.group, *grid))
            _judge(scores, truths, signs(scores, maps), right, fits, block)
    _print(args, count, size, blocks, right, fits, every)


def _judge(
    scores: Sequence[np.ndarray],
    truths: Sequence[tuple[np.ndarray, np.ndarray]],
    sign_by_rule: dict[str, float],
    right: dict[tuple[int, str], list[bool]],
    fits: dict[tuple[int, str], list[float]],
    block: int,
) -> None:
    def fit(sign: float) -> float:
        return iou([sign * score > 0 for score in scores], truths)

    better = 1.0 if fit(1.0) >= fit(-1.0) else -1.0
    for rule, sign in sign_by_rule.items():
        right[block, rule].append(sign == better)
    fits[block, "border"].append(fit(sign_by_rule["border"]))
    fits[block, "best side"].append(fit(better))
    fits[block, "all"].append(iou([np.ones(score.shape, bool) for score in scores], truths))


def _print(args: Any, count: int, size: int, blocks: Sequence[int], right: Any, fits: Any, every: Any) -> None:
    print(f"{args.data}, {args.split}: {count} images in groups of {args.group}, {size} pixels; {args.backbone}\n")
    rules = [rule for rule in RULES if (blocks[0], rule) in right]
    print("| block | " + " | ".join(f"{rule} right, %" for rule in rules) + " | IoU, border | right side | all |")
    print("|---:|" + "---:|" * (len(rules) + 3))
    for block in blocks:
        cells = [f"{100 * np.mean(right[block, rule]):.0f}" for rule in rules]
        cells += [f"{100 * np.mean(fits[block, name]):.1f}" for name in ("border", "best side", "all")]
        print(f"| {block} | " + " | ".join(cells) + " |")
    totals = [f"{100 * np.mean([x for block in blocks for x in right[block, rule]]):.0f}" for rule in rules]
    print("| all | " + " | ".join(totals) + " | | | |\n")
    print("| block | outliers, % of tokens | their mean norm | median norm |\n|---:|---:|---:|---:|")
    for block in blocks:
        outliers = count_outliers(every[block])
        print(f"| {block} | {100 * outliers.share:.2f} | {outliers.norm:.1f} | {outliers.median:.1f} |")


if __name__ == "__main__":
    main()
