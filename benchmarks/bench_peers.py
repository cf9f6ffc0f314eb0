"""Every block and learning rate of a segmentation probe beside VisBench, the nearest peer, in one process.

    python -m benchmarks.bench_peers [--images 100] [--epochs 3] [--rates 5] [--size 224]

Both probe one ViT-S/16 with random weights on the same composed scenes, as many for training as for validation, at one
size, linear heads. VisBench (a package of that name) has one head a run, of one layer and one learning rate, and a
cache of features: its first run of a layer extracts, a second one reads the cache. Both are timed for the last layer,
and the time of all heads is reckoned as one first run a layer and cached runs for the other rates: the cache counts in
its favour. Ours is what a user runs: a feature store of every block, then ``eval.probe.fit_probes`` with every block
and rate. Processor time. Without VisBench it says so, and ours is timed alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch
from torchvision import transforms

from benchmarks.measuring import seconds
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.features import Transform, export
from dinoskip.models import Backbone, create_model
from eval.labelled import LabelledTokens
from eval.probe import fit_probes

LAYERS = 12
WARMUP = 1.5  # VisBench's epochs of warm-up


def ours(scenes: ScenesConfig, root: Path, out: Path, epochs: int, rates: tuple[float, ...], size: int) -> None:
    """Extract every block of both splits, fit and score every block and rate."""
    backbone = Backbone.from_model(network(size))
    stores, tokens = [], []
    for split in ("train", "val"):
        dataset = scenes.open_segmentation(root, split, None)
        stores.append(export(backbone, dataset, out / split, "all", transform=Transform(size=size), cls=False))
        tokens.append(LabelledTokens.of(stores[-1], dataset))
    fit_probes(tokens[0], tokens[1], list(stores[0].blocks), rates, epochs, device="cpu")


def network(size: int) -> Any:
    """The ViT-S/16 that both probe, the same weights every time."""
    torch.manual_seed(0)
    return create_model("vit_small_patch16", img_size=size).eval()


class Peer:
    """VisBench's probe of one layer; ``peer(rate)`` is one run of it, features cached between runs."""

    def __init__(self, scenes: ScenesConfig, root: Path, cache: Path, epochs: int, size: int) -> None:
        import visbench  # not among our dependencies: timed only where it is installed
        from visbench.backbones.custom import CustomBackbone  # as above
        from visbench.cache import FeatureCache  # as above
        from visbench.data.dense import DenseFolderDataset, load_label_map  # as above

        def tokens(model: Any, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
            features = model.forward_features(images)
            return features[:, 1:], features[:, 0], (size // 16, size // 16)

        normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        resize = transforms.Resize((size, size), transforms.InterpolationMode.BICUBIC)
        prepare = transforms.Compose([resize, transforms.ToTensor(), normalise])
        self._run, self.cache = visbench.run, FeatureCache(cache)
        self.backbone = CustomBackbone(network(size), prepare, feature_fn=tokens, patch_size=16, image_size=size)
        self.splits = {
            split: DenseFolderDataset(
                root / "VOC2012",
                image_dir="JPEGImages",
                target_dir="SegmentationClass",
                split=split,
                image_size=size,
                target_loader=load_label_map,
                stems=scenes.open_segmentation(root, split, None).ids,
            )
            for split in ("train", "val")
        }
        # Its warm-up of 1.5 epochs is refused where it would not end.
        warmup = {} if epochs > WARMUP else {"warmup_epochs": 0}
        self.settings = {"num_classes": len(scenes.class_names) + 1, "epochs": epochs, **warmup}

    def __call__(self, rate: float) -> None:
        """Fit and score one head."""
        self._run(
            self.backbone, "semantic_segmentation", self.splits["val"], self.splits["train"], cache=self.cache,
            lr=rate, device="cpu", **self.settings,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100, help="of training, and as many of validation")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rates", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    rates = tuple(10.0 ** -(2 + i / 2) for i in range(args.rates))
    scenes = ScenesConfig(images=2 * args.images, val_fraction=0.5, size=args.size)
    heads = LAYERS * len(rates)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "scenes"
        scenes.generate(root)
        sweep = seconds(lambda: ours(scenes, root, Path(folder) / "ours", args.epochs, rates, args.size))
        print(f"ours: {heads} heads, {args.images} + {args.images} images, {args.epochs} epochs: {sweep:.1f} s")
        if importlib.util.find_spec("visbench") is None:
            print("VisBench is not installed: nothing to compare with (pip install visbench)")
            return
        peer = Peer(scenes, root, Path(folder) / "peer", args.epochs, args.size)
        first, cached = seconds(lambda: peer(rates[0])), seconds(lambda: peer(rates[-1]))
        print(f"VisBench: one head {first:.1f} s, from its cache {cached:.1f} s")
        every = LAYERS * (first + (len(rates) - 1) * cached)
        print(f"VisBench: {heads} heads, reckoned {every:.0f} s: ours is {every / sweep:.0f} times as fast")


if __name__ == "__main__":
    main()
