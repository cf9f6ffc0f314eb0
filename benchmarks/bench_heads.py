"""All heads of a linear evaluation in one stacked fit against one fit a head, in one process, on one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_heads [--task linear|depth|depth-tokens] [--batch N] [--rates N]

A ViT-S/16 with random weights and made-up images. What is timed is a step of training: images through the backbone,
heads, loss, optimizer. Ours trains the heads of all 12 blocks and all learning rates by ``HeadStack.step_with``.
Against it stands a step of one head as the public code has it, written out below, times the number of heads: its own
forward pass (all blocks, as public code does), features joined, the head, autograd, ``torch.optim``.

- ``linear``: DINOv2's sweep, class tokens of the last 1 and 4 blocks without and with the mean patch token, 13 rates,
  of every block: 546 heads of 1,000 classes.
- ``depth``: DINOv2's depth heads at 416 × 544 pixels, class token joined, 4 × as many places, 256 bins.
- ``depth-tokens``: the same without class token and with as many places as tokens, as DINOv3 has it.

No stack can be faster than its matrix products, of which every head has its own: the time of these at the measured rate
of a large product, and of the forward pass alone, is printed as a bound.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.measuring import least_seconds
from dinoskip.models import Backbone, create_model
from dinoskip_dense.depth.bins import bin_depths, logit_gradients
from dinoskip_dense.depth.config import DepthConfig
from dinoskip_dense.linear.config import LinearConfig
from dinoskip_dense.linear.fit import groups_of as linear_groups
from dinoskip_dense.linear.fit import logit_gradients as linear_gradients
from eval.frozen import FrozenFeatures
from eval.labelled import Key
from eval.probe.stack import HeadStack
from eval.stacked import Group, draw_uniform, groups_of

CLASSES, CROP = 1000, (416, 544)
CPU = torch.device("cpu")
Step = Callable[[], None]


def joined(features: FrozenFeatures, images: list[torch.Tensor], keys: Group) -> torch.Tensor:
    """A map (n, channels, h, w) of all keys of a head, class tokens at every place."""
    read, grid = features(images)
    parts = [read[key].view(len(images), -1, features.dim).transpose(1, 2) for key in keys]
    return torch.cat([part.expand(-1, -1, grid[0] * grid[1]).unflatten(2, grid) for part in parts], 1)


def plain_depth(features: FrozenFeatures, images: list[torch.Tensor], truth: torch.Tensor, config: DepthConfig) -> Step:
    """One depth head as DINOv2's code has it."""
    keys = features.keys
    conv = torch.nn.Conv2d(features.dim * len(keys), config.bins, 1)
    optimizer = torch.optim.AdamW(conv.parameters(), lr=1e-4, weight_decay=0.01)
    bins = bin_depths(config.bins, config.min_depth, config.max_depth)

    def step() -> None:
        whole = joined(features, images, keys)
        if config.upsample > 1:
            whole = F.interpolate(whole, scale_factor=config.upsample, mode="bilinear", align_corners=False)
        weights = torch.relu(conv(whole)) + 0.1
        depth = torch.einsum("ikmn,k->imn", weights / weights.sum(1, keepdim=True), bins)[:, None]
        depth = F.interpolate(depth, size=truth.shape[1:], mode="bilinear", align_corners=False)[:, 0]
        known = truth > 0
        g = torch.log(depth[known] + 1e-3) - torch.log(truth[known] + 1e-3)
        optimizer.zero_grad()
        torch.sqrt(torch.var(g) + 0.15 * g.mean() ** 2).backward()
        torch.nn.utils.clip_grad_norm_(conv.parameters(), 35)
        optimizer.step()

    return step


def plain_linear(features: FrozenFeatures, images: list[torch.Tensor], labels: torch.Tensor) -> Step:
    """One classifier as the public code has it."""
    layer = torch.nn.Linear(features.dim * len(features.keys), CLASSES)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        read, _ = features(images)
        loss = F.cross_entropy(layer(torch.cat([read[key] for key in features.keys], 1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def product_rate(repeats: int) -> float:
    """Multiply-adds a second of a large product."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 1024**3 / least_seconds(lambda: torch.mm(a, b, out=a.new_empty(1024, 1024)), 4 * repeats)


def main() -> None:
    """Time a step of every kind of heads and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="linear", choices=("linear", "depth", "depth-tokens"))
    parser.add_argument("--batch", type=int, help="images a step (default: 64; depth 2)")
    parser.add_argument("--rates", type=int, default=13, help="learning rates (default: 13)")
    parser.add_argument("--steps", type=int, default=2, help="steps timed, the fastest counts (default: 2)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rates = [1e-4 * 1.3**i for i in range(args.rates)]
    linear = args.task == "linear"
    size = (224, 224) if linear else CROP
    network = Backbone.from_model(create_model("vit_small_patch16", img_size=224))
    images = list(torch.randint(0, 256, (args.batch or (64 if linear else 2), 3, *size), dtype=torch.uint8))
    if linear:
        config = LinearConfig(learning_rates=tuple(rates))
        groups = linear_groups(range(1, 13), None, config)
        labels = torch.randint(0, CLASSES, (len(images),))
        options = {"optimizer": "sgd", "init_std": 0.01}
        stack = HeadStack(groups, config.rates, CLASSES, network.dim, 0.0, CPU, **options)  # type: ignore[arg-type]
        single = plain_linear(FrozenFeatures(network, groups[-1], "final"), images, labels)
    else:
        settings = {} if args.task == "depth" else {"cls": False, "upsample": 1}
        depth = DepthConfig.model_validate(settings)
        groups = groups_of(range(1, 13), None, cls=depth.cls)
        truth = 9 * torch.rand(len(images), *CROP) + 0.5
        stack = HeadStack(groups, rates, depth.bins, network.dim, 0.01, CPU, clip=35)
        draw_uniform(stack, 0)
        bins = bin_depths(depth.bins, depth.min_depth, depth.max_depth)
        single = plain_depth(FrozenFeatures(network, groups[-1], "none"), images, truth, depth)
    keys: list[Key] = sorted({key for group in groups for key in group})
    features = FrozenFeatures(network, keys, "final" if linear else "none")

    def together() -> None:
        read, grid = features(images)
        if linear:
            stack.step_with(read, lambda logits: linear_gradients(logits, labels, CLASSES), 1.0)
            return
        stack.step_with(
            read,
            lambda logits: logit_gradients(logits, grid, truth, bins, times=depth.upsample, pooled=2, variance=True),
            1.0,
        )

    with torch.no_grad():
        forward = least_seconds(lambda: features(images), args.steps)
        ours = least_seconds(together, args.steps)
    alone = least_seconds(single, args.steps)
    heads = len(groups) * args.rates
    read, _ = features(images)
    products = (
        2 * sum(len(read[key]) for group in groups for key in group) * args.rates * stack.num_classes * network.dim
    )
    least = forward + products / product_rate(args.steps)
    print(f"{args.task}: {heads} heads of a ViT-S/16, {len(images)} images a step, {size[0]} x {size[1]} pixels")
    print(f"one stacked step {ours:.2f} s, of which the forward pass takes {forward:.2f} s")
    print(f"one step of one head {alone:.2f} s, times {heads}: {heads * alone:.0f} s")
    print(f"ratio {heads * alone / ours:.0f}; no stack can be above {heads * alone / least:.0f} (forward and products)")


if __name__ == "__main__":
    main()
