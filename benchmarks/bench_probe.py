"""All probes of a backbone in one sweep against fits of one head each, in one process. Processor time, one thread.

    python -m benchmarks.bench_probe [--images 32] [--val 8] [--rates 8] [--epochs 30] [--classes 21]

Ours is what a user runs: photographs to a feature store of every block of a ViT-S at 224 pixels, then
``eval.probe.fit_probes`` with every block and learning rate, scored at label size (500×375); all of it is timed.
Against

- separate fits that extract again each epoch, written out below: decode, the backbone's forward pass, BatchNorm and a
  1×1 convolution, the loss, AdamW; then validation images scored with ``interpolate`` and ``argmax(1)``. A part of one
  epoch of one such fit is timed and scaled up to all heads, epochs and images. Its forward pass goes through all
  blocks, as public code's does; what passes that stop at the probed block would make of it is reckoned, too. The aim
  is 500 times with the loss on tokens (ours: refine 1) and 150 times with the loss at label size (ours: refine 2);
- one probe (one block, one learning rate) from the same store, with the extraction and without: written out below, and
  by our own code. At most 2 is wished for. A sweep of 96 heads has 96 times the matrix products of one head: their time
  at the measured rate of a large product is printed, no stack of float32 heads can be faster.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision import transforms

from benchmarks.bench_features import Photos, make_photos
from benchmarks.bench_scoring import baseline as interpolate_argmax
from benchmarks.bench_scoring import regions
from benchmarks.measuring import seconds
from dinoskip.features import FeatureStore, Transform, export
from dinoskip.models import Backbone, create_model
from eval.labelled import LabelledTokens
from eval.probe import fit_probes

BATCH, LABEL, PART = 16, (375, 500), 16  # images a batch, label size, images of the baseline that are timed
PIXELS = transforms.Compose(
    [
        transforms.Resize((224, 224), transforms.InterpolationMode.BICUBIC),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


@dataclass(frozen=True, eq=False)
class Split:
    """Photographs with label maps, and where their features go."""

    photos: Photos
    labels: list[np.ndarray]
    folder: Path

    def tokens(self, store: FeatureStore, classes: int) -> LabelledTokens:
        """Join the store with the labels."""
        stored = {block: store.tokens(block) for block in store.blocks}
        return LabelledTokens(stored, lambda i: self.labels[i], store.grid(0), classes, len(self.labels))


class PlainFit:
    """One head as separate fits train it: features extracted each time, or of block 12 from a store."""

    def __init__(self, model: torch.nn.Module, classes: int, stored: dict[Split, FeatureStore] | None = None) -> None:
        self.model, self.stored = model, stored
        self.norm = torch.nn.BatchNorm2d(384, affine=False)
        self.head = torch.nn.Conv2d(384, classes, 1)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3, weight_decay=1e-4)

    def tokens(self, split: Split, rows: Sequence[int]) -> torch.Tensor:
        """Return tokens (B, 196, 384) of a batch of images."""
        if self.stored is not None:
            return torch.from_numpy(self.stored[split].tokens(12)[list(rows)]).float()
        pixels = []
        for i in rows:
            with Image.open(split.photos.path(i)) as image:
                pixels.append(PIXELS(image.convert("RGB")))
        with torch.no_grad():
            return self.model.forward_features(torch.stack(pixels))[:, 1:]

    def logits(self, split: Split, rows: Sequence[int]) -> torch.Tensor:
        """Return (B, K, 14, 14)."""
        return self.head(self.norm(self.tokens(split, rows).transpose(1, 2).reshape(len(rows), -1, 14, 14)))

    def step(self, split: Split, rows: Sequence[int], *, at_label_size: bool) -> None:
        """Take one step of AdamW on a batch."""
        label = torch.from_numpy(np.stack([split.labels[i] for i in rows])).long()
        logits = self.logits(split, rows)
        if at_label_size:
            logits = F.interpolate(logits, size=label.shape[1:], mode="bilinear", align_corners=False)
        else:
            label = F.interpolate(label[:, None].float(), size=(14, 14), mode="nearest-exact")[:, 0].long()
        loss = F.cross_entropy(logits, label, ignore_index=255)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def score(self, split: Split, rows: Sequence[int]) -> None:
        """Count a confusion matrix at label size."""
        classes = interpolate_argmax(self.logits(split, rows), LABEL)
        size = self.head.out_channels
        for predicted, row in zip(classes, rows, strict=True):
            label = torch.from_numpy(split.labels[row]).long()
            torch.bincount((label * size + predicted)[label != 255], minlength=size * size)

    def seconds(self, train: Split, val: Split, epochs: int, *, at_label_size: bool) -> float:
        """Time a part of an epoch and of the scoring; return what the whole fit takes."""
        sizes = [(split, len(split.labels), range(min(PART, len(split.labels)))) for split in (train, val)]
        (_, images, tokens_of), (_, images_val, some_val) = sizes
        self.step(train, tokens_of[:2], at_label_size=at_label_size)  # warm
        epoch = seconds(lambda: self.step(train, tokens_of, at_label_size=at_label_size)) * images / len(tokens_of)
        return epochs * epoch + seconds(lambda: self.score(val, some_val)) * images_val / len(some_val)


def matmul_floor(heads: int, classes: int, tokens: int) -> float:
    """Seconds of the products that ``heads`` heads need for logits and gradients of ``tokens`` tokens."""
    a, b = torch.randn(384, 384), torch.randn(3136, 384)
    a @ b.T
    once = min(seconds(lambda: [a @ b.T for _ in range(10)]) for _ in range(3)) / 10
    return once * (2 * heads * classes * tokens) / (384 * 3136)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("images", 32), ("val", 8), ("rates", 8), ("epochs", 30), ("classes", 21)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = create_model("vit_small_patch16").eval()
    backbone = Backbone.from_model(model)
    rates = tuple(np.geomspace(1e-4, 1e-2, args.rates).tolist())
    heads, rng = backbone.depth * len(rates), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        splits = []
        for part, count in (("train", args.images), ("val", args.val)):
            folder = Path(name) / part
            labels = [regions(args.classes, LABEL, rng) for _ in range(count)]
            splits.append(Split(make_photos(folder, count, ".jpg", LABEL[::-1]), labels, Path(name) / f"{part} store"))
        train, val = splits
        stores: list[FeatureStore] = []
        every_block = range(1, backbone.depth + 1)

        def extract() -> None:
            for split in splits:
                shape = Transform(size=224)
                stores.append(export(backbone, split.photos, split.folder, "all", transform=shape, batch_size=BATCH))

        def fit(blocks: Sequence[int], rates: Sequence[float], refine: int) -> None:
            data = [split.tokens(store, args.classes) for split, store in zip(splits, stores, strict=True)]
            fit_probes(*data, blocks, rates, args.epochs, batch_size=BATCH, refine=refine, device="cpu")

        extraction = seconds(extract)
        floor = matmul_floor(heads, args.classes, args.images * 196) * args.epochs
        sizes = f"{args.images} + {args.val} photographs, {backbone.depth} blocks × {len(rates)} rates"
        print(f"{sizes}, {args.epochs} epochs")
        print(f"extraction of all blocks {extraction:.1f} s; products of the fit at least {floor:.1f} s")
        for refine, at_label_size in ((1, False), (2, True)):
            sweep = seconds(lambda r=refine: fit(every_block, rates, r))
            of_single = seconds(lambda r=refine: fit(every_block[-1:], rates[:1], r))
            again, cached = (
                PlainFit(model, args.classes, stored).seconds(train, val, args.epochs, at_label_size=at_label_size)
                for stored in (None, dict(zip(splits, stores, strict=True)))
            )
            print(f"loss {'at label size' if at_label_size else 'on tokens'}: sweep {sweep:.1f} s after the extraction")
            ratio = heads * again / (sweep + extraction)
            print(f"  {ratio:6.0f} × faster than {heads} fits that extract again each epoch")
            short = cached + (again - cached) * (backbone.depth + 1) / (2 * backbone.depth)
            ratio = heads * short / (sweep + extraction)
            print(f"  {ratio:6.0f} × if their forward passes stopped at the probed block")
            for name, alone in (("plain probe from the store", cached), ("probe by our code", of_single)):
                print(
                    f"  {(sweep + extraction) / (alone + extraction):6.2f} × the time of one {name} ({alone:.2f} s) "
                    f"with the extraction, {sweep / alone:.2f} × without"
                )


if __name__ == "__main__":
    main()
