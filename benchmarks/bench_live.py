"""Live probes: every block and learning rate on one forward pass a step, against one head a fit. Processor time.

    python -m benchmarks.bench_live [--steps 3] [--batch 4] [--protocol paper]

Ours is a training step of ``eval.probe.live`` and ``eval.probe.stack`` on photographs of scikit-image with made-up
labels: crops, a ViT-S/16 (random weights), all blocks × the learning rates. The baseline is the same step with one
block and one rate, which the other heads would each take again. Prints how many fits of one head the whole sweep
costs, and the ratio to as many fits as there are heads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from skimage import data

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.models import Backbone, create_model
from eval.labelled import LabelledTokens
from eval.probe.config import ProbeConfig
from eval.probe.live import LiveTokenLoader, RunningNorm
from eval.probe.loaders import training_batches
from eval.probe.stack import HeadStack

CLASSES = 21


def photographs(folder: Path, count: int) -> SegmentationDataset:
    rng = np.random.default_rng(0)
    shown = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket()]
    names = tuple(f"photo{i}" for i in range(count))
    for i, name in enumerate(names):
        photo = Image.fromarray(shown[i % len(shown)]).resize((500, 375))
        photo.save(folder / f"{name}.jpg", quality=95)
        label = rng.integers(0, CLASSES, (5, 5)).repeat(75, 0).repeat(100, 1).astype(np.uint8)
        Image.fromarray(label).save(folder / f"{name}.png")
    images, masks = (tuple(folder / f"{name}.{end}" for name in names) for end in ("jpg", "png"))
    return SegmentationDataset(
        "photographs", "train", names, images, masks, class_names=tuple(map(str, range(CLASSES)))
    )


def seconds(backbone: Backbone, photos: SegmentationDataset, recipe: ProbeConfig, blocks: int, rates: int) -> float:
    """Processor seconds of a step, the median of all but the first."""
    keys = [("final", block) for block in range(backbone.depth - blocks + 1, backbone.depth + 1)]
    labels = LabelledTokens.labels_of(photos)
    loader = LiveTokenLoader(backbone, photos, labels, keys, recipe, RunningNorm(active=True), seed=0, workers=1)
    affine = recipe.batchnorm == "affine"
    chosen = np.geomspace(1e-4, 1e-2, rates).tolist()
    stack = HeadStack([(key,) for key in keys], chosen, CLASSES, backbone.dim, 1e-4, loader.device, affine=affine)
    spent, began = [], time.process_time()
    with torch.no_grad():
        for tokens, targets in loader.batches(training_batches(np.arange(len(photos)), recipe, 0)):
            stack.step(tokens, targets, 1.0)
            spent.append(time.process_time() - began)
            began = time.process_time()
    return statistics.median(spent[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 3), ("batch", 4), ("rates", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--protocol", default="paper", choices=("paper", "fast", "dinov2"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recipe = ProbeConfig(protocol=args.protocol, live=True, iterations=args.steps + 1, batch_size=args.batch)
    backbone = Backbone.from_model(create_model("vit_small_patch16"))
    with tempfile.TemporaryDirectory() as folder:
        photos = photographs(Path(folder), 2 * args.batch)
        whole = seconds(backbone, photos, recipe, backbone.depth, args.rates)
        of_single = seconds(backbone, photos, recipe, 1, 1)
    heads = backbone.depth * args.rates
    print(f"{recipe.label}: {heads} heads {whole:.2f} s a step, the last block alone with one rate {of_single:.2f} s")
    print(f"the sweep costs {whole / of_single:.1f} × one head; ratio to {heads} fits: {heads * of_single / whole:.1f}")


if __name__ == "__main__":
    main()
