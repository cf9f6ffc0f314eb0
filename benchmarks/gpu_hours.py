"""GPU hours of a study's training, from its operations and a card's rate: ``python -m benchmarks.gpu_hours CONFIG``.

Operations are counted in closed form (dinoskip/settings/flops.py): matrix products of forward and backward passes, with
DINO the teacher's forward pass too. Hours = operations / rate. A card that is named has the rate that an H100 reached
and others are assumed to reach (dinoskip/pipeline/estimate/cards.py). Epochs that variants share are counted for each
of them; optimizer and evaluation are left out.

    python -m benchmarks.gpu_hours configs/paper/table2_dino.yaml [KEY=VALUE ...] [--card CARD | --rate TFLOPS]
                                   [--images 1281167]
"""

from __future__ import annotations

import argparse

from dinoskip.pipeline.estimate.cards import CARDS
from dinoskip.pipeline.estimate.costs import image_flops
from dinoskip.pipeline.estimate.work import CLASSES, IMAGENET
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.study import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--card", choices=CARDS, default="a100")
    parser.add_argument("--rate", type=float, help="TFLOP/s that another card reaches")
    parser.add_argument("--images", type=int, default=IMAGENET["train"], help="images of an epoch")
    arguments = parser.parse_args()
    study, variants = load_study(arguments.config, arguments.overrides)
    recipe = recipe_of(study)
    if recipe is None:
        raise SystemExit(f"{arguments.config}: trains nothing")
    rate = arguments.rate or CARDS[arguments.card].reached("bf16")
    name = "given rate" if arguments.rate else arguments.card.upper()
    print(f"{name}: {rate:.0f} TFLOP/s; {arguments.images:,} images an epoch")
    steps = arguments.images // recipe.batch_size
    total = 0.0
    for variant in variants:
        if variant.model is None:
            continue
        image = image_flops(variant.model, recipe, CLASSES)
        epoch = image * steps * recipe.batch_size
        hours = epoch * recipe.epochs / (rate * 1e12) / 3600
        total += hours
        print(
            f"{variant.name:24s} {image / 1e9:6.1f} GFLOP an image   {epoch / 1e15:6.1f} PFLOP an epoch   "
            f"{hours:6.{0 if hours >= 10 else 2}f} GPU hours for {recipe.epochs} epochs"
        )
    print(f"{'all variants':24s} {total:.{0 if total >= 10 else 2}f} GPU hours")


if __name__ == "__main__":
    main()
