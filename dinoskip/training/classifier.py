"""A ViT with a linear classifier, its loss, and its accuracy on a folder of labelled images."""

from __future__ import annotations

from typing import Literal

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.data.classification import normalise, validation_batches
from dinoskip.data.folders import LabelledFolder
from dinoskip.distributed import World, run_together
from dinoskip.randomness import torch_rng

Pooling = Literal["token", "avg"]


class ClassifierHead(nn.Module):
    """A linear layer (dim → classes). Weights depend on ``seed`` alone: truncated normal (0.02), biases zero."""

    def __init__(self, dim: int, classes: int, *, seed: int = 0) -> None:
        super().__init__()
        drawn = torch.empty(classes, dim, dtype=torch.float32)
        nn.init.trunc_normal_(drawn, std=0.02, generator=torch_rng(seed, "init", "head", "weight"))
        self.weight = nn.Parameter(drawn)
        self.bias = nn.Parameter(torch.zeros(classes, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Map features (B, dim) to logits (B, classes)."""
        return F.linear(x, self.weight, self.bias)


class Classifier(nn.Module):
    """A backbone and a head. The head reads the CLS token after the last norm, or the mean of the patch tokens."""

    def __init__(self, backbone: VisionTransformer, head: ClassifierHead, pooling: Pooling = "token") -> None:
        super().__init__()
        backbone.global_pool = pooling  # timm's own pooling: the norm stays before it either way
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, S, S) to logits (B, classes)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the batch of -sum(targets · log softmax(logits)), in float32; both (B, classes)."""
    return -(targets * F.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


def hits(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the label is among the ``k`` highest logits: bool (B,) of logits (B, classes) and labels int64 (B,).

    Of equal logits the lower class comes first; a row with a NaN is no hit.
    """
    own = logits.gather(1, labels.view(-1, 1))
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels.view(-1, 1)
    before = (logits > own) | ((logits == own) & earlier)
    return (before.sum(1) < k) & ~logits.isnan().any(1)


class Accuracy:
    """Top-1 and top-5 accuracy in percent on a folder of labelled images: an observer of the training loop.

    Images: short side to size / 0.875 (256 for 224), bicubic, centre crop. They are dealt out to the ranks and the
    counts summed, so every image counts once whatever the number of ranks and the numbers are those of one process.
    """

    score = "top1"

    def __init__(self, folder: LabelledFolder, size: int, *, batch_size: int = 128, workers: int = 0) -> None:
        self.folder, self.size, self.batch_size, self.workers = folder, size, batch_size, workers

    def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
        """``{"top1": ..., "top5": ...}`` of a network in eval mode on ``here.device``, equal on all ranks.

        Raises :class:`DataError`, on every rank, if it fails on one: an image that cannot be read, no device memory.
        """
        mine = range(here.rank, len(self.folder), here.size)

        def count() -> list[int]:
            counts = [0, 0]
            for images, labels in validation_batches(self.folder, mine, self.size, self.batch_size, self.workers):
                logits, truth = network(normalise(images.to(here.device))), labels.to(here.device)
                for place, k in enumerate((1, 5)):
                    counts[place] += int(hits(logits, truth, k).sum())
            return counts

        found = run_together(count, "accuracy")
        top1, top5 = (100.0 * sum(part[place] for part in found) / len(self.folder) for place in (0, 1))
        return {"top1": top1, "top5": top5}
