"""Robustness to rounding of networks with and without skips: ``python -m benchmarks.bench_quantisation``.

Paper 4 (*The Quantization Benefits of Residual-Free Transformers*, table 1, fig. 11) finds language models without
skips more robust: activations closer to Gaussian, a higher SQNR, less lost at few bits. Here small ViTs (12 blocks,
width 96) learn to tell crops of 16 photographs apart (:mod:`benchmarks.photo_crops`) with and without skips, with AdamW
and SOAP; then accuracy on the photographs' other parts is measured as WnAm, and for each kind of site SQNR, normalised
MSE and excess kurtosis. The results are printed, and whether the paper's order holds; nothing is asserted. Six minutes
of one thread a seed.

    python -m benchmarks.bench_quantisation [--seeds 1] [--steps 400]
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

import torch
from timm.models.vision_transformer import VisionTransformer

from benchmarks.photo_crops import PHOTOS, SIDE, accuracy, crops, train
from dinoskip.diagnostics import block_activations, distortions, excess_kurtosis, quantised
from dinoskip.diagnostics.quantization import wnam
from dinoskip.init import residual_free_, skipless_, trunc_normal_
from dinoskip.models import Backbone, create_model
from dinoskip.optim import AdamWConfig, SoapConfig

NETWORKS = {
    "residual, AdamW": ("skip", AdamWConfig(lr=1e-3)),
    "residual, SOAP": ("skip", SoapConfig(lr=1e-3)),
    "residual-free, SOAP": ("residual_free", SoapConfig(lr=1e-3)),
    "skipless, SOAP": ("skipless", SoapConfig(lr=1e-3)),
}
BITS = ((None, None), (8, 8), (8, 6), (6, 6), (4, 8), (4, 6), (4, 4))
SITES = ("norm1", "attn", "norm2", "mlp", "norm")
ACTIVATIONS = (4, 6, 8, 12, 16)


def build(kind: str, seed: int) -> VisionTransformer:
    """Build a network with skips and the default initialisation, or without skips and that of paper 4 or paper 0."""
    model = create_model("vit_tiny_patch8", skip=kind == "skip", depth=12, img_size=SIDE, embed_dim=96, num_heads=3,
                         num_classes=len(PHOTOS))  # fmt: skip
    trunc_normal_(model, seed)
    if kind == "residual_free":
        residual_free_(model, seed=seed)
    if kind == "skipless":
        skipless_(model, seed=seed)
    return model


def measure(name: str, model: VisionTransformer) -> tuple[float, float]:
    """Print everything about one trained network; its median SQNR at 8 bits and the share of accuracy kept as W8A6."""
    backbone = Backbone.from_model(model, name)
    calibration, _ = crops(1024, "calibration")
    images, _ = crops(256, "distortion", test=True)
    scores = {wnam(*bits): 100 * accuracy(quantised(backbone, *bits, calibration).model, 800) for bits in BITS}
    print("  accuracy: " + ", ".join(f"{label} {value:.1f}" for label, value in scores.items()))
    measured = distortions(backbone, calibration, images, ACTIVATIONS, batch=256)
    for site in SITES:
        of_site = [point for point in measured if point.site.rpartition(".")[2] == site]
        dbs = ", ".join(f"{bits} bit {median(point.sqnr[bits] for point in of_site):.1f}" for bits in ACTIVATIONS)
        mse = median(point.normalised_mse(8) for point in of_site)
        print(f"  {site}: median SQNR in dB {dbs}; normalised MSE at 8 bits {mse:.1e}")
    with torch.no_grad():
        kurtosis = [excess_kurtosis(block.output) for block in block_activations(model, images)]
    print(f"  excess kurtosis of block outputs: median {median(kurtosis):.2f}, largest {max(kurtosis):.2f}", flush=True)
    return median(point.sqnr[8] for point in measured), scores[wnam(8, 6)] / scores[wnam(None, None)]


def main() -> int:
    """Print a table of all networks and precisions; return 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    for seed in range(args.seeds):
        results = {}
        for name, (kind, optimizer) in NETWORKS.items():
            model = build(kind, seed)
            loss = train(model, optimizer, seed, args.steps)
            print(f"seed {seed}, {name}: loss {loss:.3f}")
            results[name] = measure(name, model)
        sqnr, kept = results["residual-free, SOAP"]
        for name in ("residual, AdamW", "residual, SOAP"):
            words = ["higher" if sqnr > results[name][0] else "LOWER", "more" if kept > results[name][1] else "LESS"]
            print(f"seed {seed}, residual-free against {name}: SQNR at 8 bits {words[0]}, keeps {words[1]} as W8A6")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
