# Frozen: rows docs/protocols.md, commit f09405c7, 2026-11-25.
"""Scores on scenes without a network: trivial rule, colours and a random patch, on old scenes and new ones.

python -m studies.task_floors [--images 1200] [--sizes 48 64 96] [--objects 3] [--network SPEC]

Segmentation by the probe (mIoU), discovery by TokenCut (CorLoc), the features of :mod:`eval.pixels` in patches of 8.
With a network also the mIoU of its best block (by held-out training images) at as many patches: what can be reached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.pages import markdown_table
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.models import Backbone, load_backbone
from dinoskip.runtime.environment import describe
from eval.baselines import centre_box, majority_areas
from eval.discovery import is_hit
from eval.labelled import LabelledTokens
from eval.metrics import scores_of_areas
from eval.pixels import pixel_tokens
from eval.probe.fit import fit_probes
from eval.tokencut.cut import to_pixels, tokencut

PATCH = 8
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def of_network(
    backbone: Backbone, parts: Sequence[SegmentationDataset], grid: tuple[int, int], epochs: int
) -> tuple[float, str]:
    """MIoU in percent of a network's best block by held-out images, and which, at a grid of patches."""
    side = grid[0] * backbone.patch_size
    transform = Transform(mode="square", size=side)
    normalise = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
    blocks = list(range(1, backbone.depth + 1))
    joined = []
    for part in parts:
        by_block: dict[int, list[NDArray[np.float32]]] = {block: [] for block in blocks}
        for at in range(0, len(part), 20):
            images = [
                load_pixels(transform, part.path(i), backbone.patch_size) for i in range(at, min(at + 20, len(part)))
            ]
            layers = backbone.layers(normalise(images, side, side), blocks, "out", "final")
            for block in blocks:
                by_block[block].append(layers[block].tokens.float().numpy())
        tokens = {block: np.concatenate(parts) for block, parts in by_block.items()}
        joined.append(LabelledTokens(tokens, part.label, grid, part.num_classes, len(part)))
    results = fit_probes(joined[0], joined[1], blocks, RATES, epochs, refine=1, device="cpu")
    best = max(results, key=lambda result: result.heldout[result.chosen])
    return 100 * best.scores.miou, best.name


def segmentation(config: ScenesConfig, root: Path, size: int, epochs: int, backbone: Backbone | None) -> list[str]:
    """MIoU in percent of the validation scenes: of the majority class, the probe of each kind of pixels, a network."""
    train, val = (config.open_segmentation(root, split, None) for split in ("train", "val"))
    transform = Transform(mode="square", size=size)
    tokens = [pixel_tokens(part, range(len(part)), transform, PATCH) for part in (train, val)]
    grid, values = (size // PATCH, size // PATCH), list[float]()
    for name in tokens[0]:
        both = [
            LabelledTokens({1: pixels[name]}, part.label, grid, part.num_classes, len(part))
            for part, pixels in zip((train, val), tokens, strict=True)
        ]
        (result,) = fit_probes(both[0], both[1], [1], RATES, epochs, refine=1, device="cpu")
        values.append(100 * result.scores.miou)
    areas = majority_areas(both[0].pixels_per_image(), both[1].pixels_per_image())
    said = [f"{value:.1f}" for value in (100 * scores_of_areas(areas.sum(0)).miou, *values)]
    if backbone is not None:
        value, block = of_network(backbone, (train, val), grid, epochs)
        said.append(f"{value:.1f} (block {block})")
    return said


def discovery(config: ScenesConfig, root: Path) -> list[str]:
    """CorLoc in percent of the validation scenes: of the centre box, then of TokenCut on each kind of pixels."""
    boxes = config.open_detection(root, "val", None)
    truth = [boxes.boxes(i) for i in range(len(boxes))]
    centre = np.mean([is_hit(centre_box(config.size, config.size), boxes) for boxes in truth])
    values = [100 * float(centre)]
    for tokens in pixel_tokens(boxes, range(len(boxes)), Transform(mode="native"), PATCH).values():
        grid, standard = (config.size // PATCH, config.size // PATCH), tokens.standardised()
        predicted = [
            to_pixels(tokencut(standard(i), grid).box, PATCH, (config.size, config.size)) for i in range(len(boxes))
        ]
        values.append(100 * float(np.mean([is_hit(box, boxes) for box, boxes in zip(predicted, truth, strict=True)])))
    return [f"{value:.1f}" for value in values]


def table(images: int, sizes: Sequence[int], most: int, epochs: int, backbone: Backbone | None) -> list[str]:
    """A line for each kind of scenes, measure and size."""
    lines = []
    for objects in ("cutouts", "shapes"):
        for size in sizes:
            config = ScenesConfig(
                images=images, val_fraction=0.33, size=max(size, 64), objects=objects, max_objects=most
            )
            with tempfile.TemporaryDirectory() as folder:
                root = config.generate(Path(folder))
                floors = {"mIoU": segmentation(config, root, size, epochs, backbone)}
                if size == config.size:
                    floors["CorLoc"] = [*discovery(config, root), *([] if backbone is None else [""])]
            lines += [[f"{objects}, {size} px, {name}", *values] for name, values in floors.items()]
    columns = ["scenes", "trivial rule", "colours", "random patch"]
    return markdown_table(columns if backbone is None else [*columns, "network"], lines)


def main() -> int:
    """Measure; print the table and the machine."""
    parser = argparse.ArgumentParser(prog="python -m studies.task_floors")
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[48, 64, 96])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--objects", type=int, default=3, help="most in a scene")
    parser.add_argument("--network", metavar="SPEC", help="a backbone, for what can be reached")
    args = parser.parse_args()
    torch.set_num_threads(1)
    backbone = None if args.network is None else load_backbone(args.network)
    print("\n".join(table(args.images, args.sizes, args.objects, args.epochs, backbone)))
    machine = describe()
    print(f"{args.images} scenes, a third of them validation; {machine['cores']} cores, torch {machine['torch']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
