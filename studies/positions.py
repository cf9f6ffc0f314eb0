# Frozen: rows docs/backbones.md, commit ca77684f, 2026-11-25.
"""Dependence of features on the rule by which a ViT's positions are resized for another image size.

python -m studies.positions [SPEC] [--sizes 98 224 448 518] [--photos 4]

Prints a table for docs/backbones.md: for each size and pair of rules the largest relative deviation of a patch's last
features, ‖a - b‖ / ‖a‖, and the smallest cosine, over scikit-image's photographs. The default network is a seeded
random one, whose positions are those of its start; give trained weights for figures that mean something.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import torch

from benchmarks.pages import markdown_table
from dinoskip.diagnostics import bundled_photos
from dinoskip.models import load_backbone
from dinoskip.runtime.environment import describe

RULES = ("timm", "dino", "bicubic")
RANDOM = "timm:vit_small_patch14_dinov2,pretrained=false"


def deviations(spec: str, size: int, photos: int = 4) -> dict[tuple[str, str], tuple[float, float]]:
    """(largest relative deviation, smallest cosine) of the last block's patch features for every two of the rules."""
    images = bundled_photos(photos, size).float()
    features = {}
    for rule in RULES:
        backbone = load_backbone(spec, pos_embed=rule)
        features[rule] = backbone.layers(images, [backbone.depth])[backbone.depth].tokens
    differences = {}
    for first, second in combinations(RULES, 2):
        a, b = features[first], features[second]
        relative = (a - b).norm(dim=-1) / a.norm(dim=-1)
        cosine = torch.nn.functional.cosine_similarity(a, b, dim=-1)
        differences[first, second] = float(relative.max()), float(cosine.min())
    return differences


def main() -> None:
    """Measure every way to resize positions and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", nargs="?", default=RANDOM)
    parser.add_argument("--sizes", type=int, nargs="+", default=[98, 224, 448, 518])
    parser.add_argument("--photos", type=int, default=4)
    args = parser.parse_args()
    machine = describe()
    print(f"{args.spec}: {args.photos} photographs, {machine['cores']} cores, torch {machine['torch']}\n")
    rows = [
        [str(size), f"{first} and {second}", f"{100 * relative:.1f} %", f"{cosine:.4f}"]
        for size in args.sizes
        for (first, second), (relative, cosine) in deviations(args.spec, size, args.photos).items()
    ]
    print("\n".join(markdown_table(["pixels", "rules", "largest deviation", "least cosine"], rows)))


if __name__ == "__main__":
    main()
