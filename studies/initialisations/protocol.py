# Frozen: rows docs/results/initialisations.md, commit 41fd7fa3, 2026-11-25.
"""One run of the search: width 96, 3 heads, patches of 8, 48 × 48 pixels, Imagenette with labels, 300 steps of 32.

Adam's or SOAP's rate rises for 30 steps and falls as a cosine; weight decay 0.05; cross-entropy on the CLS token; crops
of 48 of 64 pixels, flipped by chance. Every fourth training image is left out and classified at the end (about 2,370;
± 1 point); the validation images (about 600) choose learning rates. Before and after training: k-NN of the CLS token, a
linear probe of every block's patches on the embedded scenes (the commonest class of each patch, of 7), token and CLS
cosine, the ratio of the blocks' gradient norms.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.diagnostics import propagation
from dinoskip.init import trunc_normal_
from dinoskip.io.images import read_image
from dinoskip.io.resize import resize
from dinoskip.models import Backbone, create_model
from dinoskip.optim import OptimizerConfig, build_optimizer, set_rates
from dinoskip.runtime.console import Progress
from dinoskip.runtime.randomness import torch_rng
from eval.knn.classify import knn_predictions
from eval.labelled import LabelledTokens
from eval.probe.fit import fit_probes
from studies.initialisations.candidates import CANDIDATES

SIDE, STORED, PATCH, CLASSES, BATCH, STEPS, WARMUP = 48, 64, 8, 10, 32, 300, 30
NEIGHBOURS, CALIBRATION, LOOKED_AT = 20, 64, 32
SCENES = ScenesConfig(images=800, size=96, val_fraction=0.25)
PROBE_RATES, PROBE_EPOCHS = (1e-3, 1e-2), 10


@dataclass(frozen=True)
class Pixels:
    """Images as uint8 (n, 3, 64, 64), and their classes."""

    images: Tensor
    labels: Tensor

    def inputs(self, rows: Tensor) -> Tensor:
        """Centre crops (B, 3, 48, 48), normalised."""
        low = (STORED - SIDE) // 2
        return normalised(self.images[rows, :, low : low + SIDE, low : low + SIDE])

    def crops(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """Random crops, flipped by chance (B, 3, 48, 48), normalised."""
        tops, lefts = torch.randint(STORED - SIDE + 1, (2, len(rows), 1), generator=rng)
        flips = torch.rand(len(rows), 1, generator=rng) < 0.5
        across = torch.arange(SIDE).expand(len(rows), -1)
        x = lefts + torch.where(flips, SIDE - 1 - across, across)
        y = tops + across
        chosen = self.images[rows].permute(0, 2, 3, 1)
        picked = chosen[torch.arange(len(rows))[:, None, None], y[:, :, None], x[:, None, :]]
        return normalised(picked.permute(0, 3, 1, 2))


def normalised(pixels: Tensor) -> Tensor:
    """uint8 (B, 3, H, W) as a network takes them."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
    return (pixels.float() / 255 - mean) / std


@dataclass(frozen=True)
class Scenes:
    """Labelled scenes: inputs (n, 3, 48, 48), and the commonest class of every patch, uint8 (n, 6, 6)."""

    images: Tensor
    labels: np.ndarray
    classes: int

    @classmethod
    def read(cls, folder: Path, split: str) -> Scenes:
        """A split of the composed scenes."""
        opened = open_labels(SEGMENTATION, SCENES, split, folder)
        pixels = [torch.from_numpy(read_image(opened.path(i))).permute(2, 0, 1) for i in range(len(opened))]
        images = normalised(torch.stack([resize(image, SIDE, SIDE) for image in pixels]))
        grid, cell = SIDE // PATCH, SCENES.size * PATCH // SIDE
        labels = np.stack([opened.label(i) for i in range(len(opened))]).reshape(-1, grid, cell, grid, cell)
        counts = np.stack([(labels == value).sum((2, 4)) for value in range(opened.num_classes)])
        return cls(images, counts.argmax(0).astype(np.uint8), opened.num_classes)

    def tokens(self, backbone: Backbone) -> LabelledTokens:
        """Patches of all blocks after the last norm."""
        blocks = range(1, backbone.depth + 1)
        parts = [backbone.layers(pixels, blocks, norm="final") for pixels in self.images.split(100)]
        stacked = {block: torch.cat([part[block].tokens for part in parts]).numpy() for block in blocks}
        grid = (SIDE // PATCH, SIDE // PATCH)
        return LabelledTokens(stacked, self.labels.__getitem__, grid, self.classes, len(self.labels))


@dataclass(frozen=True)
class Data:
    """The images and labels that every run is trained and scored on."""

    train: Pixels
    held_out: Pixels
    val: Pixels
    scenes: tuple[Scenes, Scenes]

    @classmethod
    def read(cls, folder: Path, cache: Path) -> Data:
        """Images of ``folder``/train and /val, decoded once into ``cache``, and the scenes, composed there once."""
        train, val = (_pixels(folder / part, cache / f"{part}.npz") for part in ("train", "val"))
        out = torch.arange(len(train.labels)) % 4 == 0
        if not (cache / "scenes").is_dir():
            SCENES.generate(cache / "scenes")
        scenes = (Scenes.read(cache / "scenes", "train"), Scenes.read(cache / "scenes", "val"))
        held_out = Pixels(train.images[out], train.labels[out])
        return cls(Pixels(train.images[~out], train.labels[~out]), held_out, val, scenes)


def _pixels(folder: Path, cache: Path) -> Pixels:
    if not cache.is_file():
        images = LabelledFolder.open(folder)
        stack = np.empty((len(images), 3, STORED, STORED), dtype=np.uint8)
        for index, row in enumerate(stack):
            pixels = torch.from_numpy(read_image(images.path(index))).permute(2, 0, 1)
            side = min(pixels.shape[1:])
            top, left = ((length - side) // 2 for length in pixels.shape[1:])
            row[:] = resize(pixels[:, top : top + side, left : left + side], STORED, STORED).numpy()
        np.savez(cache, images=stack, labels=images.labels)
    with np.load(cache) as stored:
        return Pixels(torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long())


def build(name: str, data: Data, depth: int, seed: int) -> VisionTransformer:
    """The network of a candidate at its start, with a classifier."""
    model = create_model(
        "vit_mini_patch8", skip=name == "skip", depth=depth, img_size=SIDE, embed_dim=96, num_heads=3,
        num_classes=CLASSES, weight_init="skip",
    )  # fmt: skip
    trunc_normal_(model, seed)
    rows = torch.arange(CALIBRATION) * len(data.train.labels) // CALIBRATION
    CANDIDATES[name](model, data.train.inputs(rows), seed)
    return model


def measure(model: VisionTransformer, data: Data) -> dict[str, Any]:
    """Return the measurements of a network; those that are lists have an entry a block."""
    was_training = model.training
    model.eval()
    rows = propagation(model, data.held_out.inputs(torch.arange(LOOKED_AT) * len(data.held_out.labels) // LOOKED_AT))
    norms = [row.gradient for row in rows]
    backbone = Backbone.from_model(model)
    fitted, scored = (part.tokens(backbone) for part in data.scenes)
    blocks = [row.block for row in rows]
    with Progress.hidden():
        probes = fit_probes(fitted, scored, blocks, PROBE_RATES, PROBE_EPOCHS, refine=1, device="cpu")
    with torch.no_grad():
        stored, asked = (features(model, part) for part in (data.train, data.held_out))
    nearest = knn_predictions(stored[None], data.train.labels.numpy(), asked[None], (NEIGHBOURS,))[NEIGHBOURS][0]
    model.train(was_training)
    return {
        "token_cosine": [row.token_cosine for row in rows],
        "cls_cosine": [row.cls_cosine for row in rows],
        "gradient_ratio": max(norms) / min(norms) if min(norms) > 0 else None,
        "probe_miou": [100 * result.scores.miou for result in probes],
        "knn": 100 * float((nearest == data.held_out.labels.numpy()).mean()),
    }


def features(model: VisionTransformer, part: Pixels) -> Tensor:
    """CLS tokens after the last norm (n, 96)."""
    rows = torch.arange(len(part.labels)).split(256)
    return torch.cat([model.forward_features(part.inputs(index))[:, 0] for index in rows])


def accuracy(model: VisionTransformer, part: Pixels) -> float:
    """Percent of centre crops that are classified rightly."""
    model.eval()
    with torch.no_grad():
        predicted = model.get_classifier()(features(model, part)).argmax(1)
    return 100 * float((predicted == part.labels).double().mean())


def run(name: str, optimizer: OptimizerConfig, seed: int, depth: int, data: Data) -> dict[str, Any]:
    """Train once: losses of every tenth step, accuracies, and what :func:`measure` sees at the end."""
    model, began = build(name, data, depth, seed).train(), time.process_time()
    updates = build_optimizer(model, optimizer)
    losses: list[float] = []
    for step in range(STEPS):
        share = min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * max(0, step - WARMUP) / (STEPS - WARMUP)))
        set_rates(updates, optimizer.lr * share, 0.05)
        rng = torch_rng(seed, "batch", step)
        rows = torch.randint(len(data.train.labels), (BATCH,), generator=rng)
        loss = F.cross_entropy(model(data.train.crops(rows, rng)), data.train.labels[rows])
        updates.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        updates.step()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            return {"failed": f"not finite at step {step + 1}", "loss": losses[::10]}
    return {
        "loss": losses[::10],
        "final_loss": sum(losses[-STEPS // 10 :]) / (STEPS // 10),
        "accuracy": accuracy(model, data.held_out),
        "val_accuracy": accuracy(model, data.val),
        "seconds": round(time.process_time() - began, 1),
        **measure(model, data),
    }
