"""Training of a detector on a set with boxes, and what it finds in images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN

from dinoskip.errors import DataError
from dinoskip.models import Backbone
from dinoskip.runtime.console import Progress
from dinoskip.runtime.randomness import derive, numpy_rng
from dinoskip_detection.config import DetectionConfig
from dinoskip_detection.model import decayed, detector
from dinoskip_detection.objects import Objects, Truth, mirrored
from eval.heads import read_ahead
from eval.object_scores import Outline, outline
from eval.prefetch import prefetched, threads_of
from eval.probe.loaders import TrainingBatch, training_batches

_CHECKED = 50  # steps after which losses are looked at: a GPU is not waited for in between


@dataclass(frozen=True, eq=False)
class Found:
    """Detections in an image: boxes float64 (n, 4) x1 y1 x2 y2, scores (n,), classes from 0, and outlines.

    ``outlines`` is None for a detector without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    outlines: Sequence[Outline] | None


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's own generator at a seed, as torchvision's samplers and initialisations use it; as it was, afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def fit_detector(
    backbone: Backbone, objects: Objects, block: int, config: DetectionConfig, *, seed: int = 0, workers: int = 0
) -> FasterRCNN:
    """Train a detector on a block, and with ``fine_tune`` the network below it; a function of the arguments alone.

    Raises :class:`DataError` for a set without objects, and if the loss is not finite.
    """
    with_objects = [i for i in range(len(objects)) if any(not entry["iscrowd"] for entry in objects.entries(i))]
    if not with_objects:
        raise DataError(f"{objects.dataset.name} {objects.dataset.split}: no image has an object")
    steps = config.steps(len(with_objects))

    def read(batch: TrainingBatch) -> list[tuple[Tensor, Truth]]:
        pairs = []
        for row in batch.rows.tolist():
            pixels = objects.pixels(row)
            image = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
            truth = objects.truth(row, pixels.shape[:2])
            turn = numpy_rng(seed, "detection-flip", objects.dataset.ids[row], batch.epoch).random() < config.flip
            pairs.append(mirrored(image, truth) if turn else (image, truth))
        return pairs

    with seeded(derive(seed, "detection", block), backbone.device):
        model = detector(backbone, block, config, len(objects.categories), masks=objects.coco is not None)
        backbone.model.requires_grad_(config.fine_tune)
        learnt = nn.ModuleList([model, backbone.model] if config.fine_tune else [model])
        optimizer = torch.optim.AdamW(decayed(learnt, config.weight_decay), lr=config.lr)
        batches = training_batches(np.array(with_objects), config, seed)
        model.train()
        finite = torch.ones((), dtype=torch.bool, device=backbone.device)
        with Progress(f"detector, block {block}", steps, "steps") as progress:
            for batch, pairs in prefetched(batches, read, threads_of(workers)):
                images = [image.to(backbone.device) for image, _ in pairs]
                truths = [{key: tensor.to(backbone.device) for key, tensor in truth.items()} for _, truth in pairs]
                loss = torch.stack(list(model(images, truths).values())).sum()
                finite &= loss.isfinite()
                for group in optimizer.param_groups:
                    group["lr"] = config.rate(batch.step, steps)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if (done := batch.step + 1) % _CHECKED == 0 or done == steps:
                    _check_finite(finite, block, done)
                progress.advance()
    return model.eval()


def _check_finite(finite: Tensor, block: int, done: int) -> None:
    """Raise :class:`DataError` unless ``finite``, a bool on the device of the losses, of the steps up to ``done``."""
    if not bool(finite):
        first = (done - 1) // _CHECKED * _CHECKED + 1  # those before were finite when they were looked at
        where = f"detection: block {block}: the loss is not finite, in steps {first} to {done}"
        raise DataError(where, "lower the learning rate")


@torch.no_grad()
def find(model: FasterRCNN, objects: Objects, device: torch.device, workers: int = 0) -> list[Found]:
    """Return the detections of every image, at most 100 objects each, in pixels of the image."""
    detections = []
    for _, pixels in read_ahead("detection", range(len(objects)), objects.pixels, workers):
        image = torch.from_numpy(pixels).permute(2, 0, 1).to(device).float() / 255
        seen: dict[str, Any] = {key: tensor.cpu().numpy() for key, tensor in model([image])[0].items()}
        outlines = [outline(mask[0] > 0.5) for mask in seen["masks"]] if "masks" in seen else None
        detections.append(Found(seen["boxes"].astype(np.float64), seen["scores"], seen["labels"] - 1, outlines))
    return detections
