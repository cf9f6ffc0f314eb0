"""Training of a skipless ViT, and effect of each part of its initialisation: ``python -m benchmarks.bench_training``.

12 blocks, width 96, 3 heads, 17 tokens, 400 steps of 32 crops, weight decay 0.05; see :mod:`benchmarks.photo_crops`.
Claims, for every seed: with AdamW at 3e-4 the default initialisation without skips stays near chance, ours comes
within 0.5 of the network with skips; all three parts of ours (query-key, value-output, MLP) are needed; SOAP at 1e-3
brings both below what AdamW reaches. Twenty minutes on one thread; exit code 1 if a claim fails.

    python -m benchmarks.bench_training [--seeds 3] [--steps 400]
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from timm.models.vision_transformer import VisionTransformer

from benchmarks.photo_crops import PHOTOS, SIDE, accuracy, train
from dinoskip.init import skipless_, trunc_normal_
from dinoskip.models import create_model
from dinoskip.optim import AdamWConfig, OptimizerConfig, SoapConfig

NETWORKS = {"skip": None, "skipless default": "", "skipless initialised": "QK VO MLP"}
PARTS = {"QK alone": "QK", "QK and VO": "QK VO", "QK and MLP": "QK MLP", "VO and MLP": "VO MLP"}


def build(parts: str | None, seed: int) -> VisionTransformer:
    """The network with skips for None; else the one without, ``parts`` of it initialised by ``skipless_``."""
    model, ours = (
        create_model("vit_tiny_patch8", skip=parts is None, depth=12, img_size=SIDE, embed_dim=96, num_heads=3,
                     num_classes=len(PHOTOS))
        for _ in range(2)
    )  # fmt: skip
    trunc_normal_(model, seed)
    if parts:
        skipless_(ours, seed=seed)
    with torch.no_grad():
        for block, given in zip(model.blocks, ours.blocks, strict=True):
            by_name, new = dict(block.named_parameters()), dict(given.named_parameters())
            if parts and "QK" in parts:
                by_name["attn.qkv.weight"][: 2 * 96] = new["attn.qkv.weight"][: 2 * 96]
            if parts and "VO" in parts:
                by_name["attn.qkv.weight"][2 * 96 :] = new["attn.qkv.weight"][2 * 96 :]
                by_name["attn.proj.weight"].copy_(new["attn.proj.weight"])
            if parts and "MLP" in parts:
                for name in ("mlp.fc1.weight", "mlp.fc2.weight"):
                    by_name[name].copy_(new[name])
    return model


def main() -> int:
    """Print a line a run; 0 if the claims hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    began, losses = time.process_time(), dict[tuple[str, str, int], float]()

    def run(optimizer: OptimizerConfig, name: str, parts: str | None, seed: int) -> None:
        model = build(parts, seed)
        loss = losses[optimizer.name, name, seed] = train(model, optimizer, seed, args.steps)
        correct = 100 * accuracy(model)
        print(f"{optimizer.name} {optimizer.lr:g}, seed {seed}, {name}: loss {loss:.3f}, accuracy {correct:.0f} %",
              flush=True)  # fmt: skip

    for seed in range(args.seeds):
        for name, parts in NETWORKS.items():
            run(AdamWConfig(lr=3e-4), name, parts, seed)
            run(SoapConfig(lr=1e-3), name, parts, seed)
    for name, parts in PARTS.items():
        run(AdamWConfig(lr=3e-4), name, parts, 0)
    print(f"{time.process_time() - began:.0f} s of processor time")
    good = all(losses["adamw", "skipless initialised", 0] < losses["adamw", name, 0] for name in PARTS)
    for seed in range(args.seeds):
        skip, default, ours = (losses["adamw", name, seed] for name in NETWORKS)
        good &= default > ours + 0.5 and ours < skip + 0.5
        better = losses["soap", "skipless initialised", seed] < ours and losses["soap", "skip", seed] < skip
        good &= better and losses["soap", "skipless initialised", seed] < losses["soap", "skipless default", seed]
    print("the ordering holds" if good else "the ordering FAILS")
    return 0 if good else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
