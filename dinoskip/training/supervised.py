"""Supervised training: ConvNeXt's ImageNet recipe (Liu et al. 2022), which weight selection and Cutting the Skip use.

AdamW at 4e-3 for a batch of 4096, which is 2.5e-4 per 256 images as our optimizers count, weight decay 0.05 throughout,
300 epochs with 50 of warm-up, cosine to 1e-6, RandAugment 9/0.5, mixup 0.8, cutmix 1.0, label smoothing 0.1, random
erasing 0.25, no drop path, no clipping. See docs/supervised.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.data.classification import ClassLoader, normalise, validation_batches
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.loader import BatchSplit
from dinoskip.data.workers import wait_advice
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import hash_of, load_tensors, read_json
from dinoskip.models.build import from_config
from dinoskip.models.export import check_fit, load_strict, load_weights
from dinoskip.models.heads import draw_layers_
from dinoskip.runtime.distributed import World, run_together
from dinoskip.settings.specs import exported_weights
from dinoskip.training import loop
from dinoskip.training.calibration import first_weights
from dinoskip.training.objective import Objective, Step
from dinoskip.training.rates import Schedules
from dinoskip.training.skip_dial import SkipDial
from dinoskip.training.supervised_config import Pooling, SupervisedConfig, SupervisedJob


def supervise(
    job: SupervisedJob,
    train: LabelledFolder,
    val: LabelledFolder | None,
    run_dir: str | Path,
    *,
    device: str = "auto",
    workers: int = 0,
    allow: Collection[str] = (),
    start: Path | None = None,
    images_format: str = "folder",
) -> Path:
    """Train, or go on training, in ``run_dir``; return the final checkpoint's directory.

    ``start``: a weights file with which the backbone begins; by default it begins as ``job.model.init`` says, which may
    be measured on the images of ``train``. ``images_format``: the kind of the data set, for the header of weights.

    ``val`` is classified every ``online_every`` epochs and at the end; rows of metrics.jsonl then have ``top1`` and
    ``top5`` in percent, and the checkpoint of the best ``top1`` is kept. See :func:`dinoskip.training.loop.train` for
    the other arguments and the errors raised; :class:`DataError` if there are not two classes, or ``val`` has others.
    """
    if len(train.class_names) < 2:
        raise DataError(f"{train.root}: one class only, {train.class_names[0]}: there is nothing to tell apart")
    if val is not None and val.class_names != train.class_names:
        raise DataError(f"{val.root}: its classes are not those of {train.root}")

    def prepare(here: World) -> loop.Training:
        loader = labelled_batches(job, train, here, workers)
        objective = Supervised(job, len(train.class_names), loader.steps_per_epoch, here.device)
        verdict = partial(wait_advice, mode=None, workers=here.readers(workers))
        return loop.Training(objective, loader, train.ids, verdict, first_weights(job.model, job.seed, train, start))

    def data() -> dict[str, Any]:
        numbered = hash_of([list(train.class_names), train.labels.tolist()])
        about = {"fingerprint": train.fingerprint(), "images": len(train), "labels": numbered}
        return about | ({"val": val.fingerprint()} if val is not None else {})

    observer = Accuracy(val, job.supervise.augment.size, workers=workers) if val is not None else None
    options: dict[str, Any] = {"device": device, "observer": observer, "allow": allow, "images_format": images_format}
    return loop.train(job, prepare, data, run_dir, **options)


def labelled_batches(job: SupervisedJob, images: LabelledFolder, here: World, workers: int) -> ClassLoader:
    """This rank's micro-batches; :class:`ConfigError` if mixing needs pairs and a micro-batch cannot be paired."""
    config = job.supervise
    split = BatchSplit(config.batch_size, here.rank, here.size, config.accumulate)
    if config.augment.mixes and split.micro % 2:
        raise ConfigError(
            f"supervise.batch_size: {split.batch_size} makes micro-batches of {split.micro}, which cannot be mixed in "
            "pairs",
            "take an even number, or augment.mixup=0 and augment.cutmix=0",
        )
    readers = here.readers(workers)
    return ClassLoader(images, config.augment, split, seed=job.seed, workers=readers, device=here.device)


# --- one step ------------------------------------------------------------------------------------------


class Supervised(Objective):
    """Training of a classifier by cross-entropy with soft targets, which mixed images have."""

    observed = "student"
    config: SupervisedConfig

    def __init__(self, job: SupervisedJob, classes: int, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config, self.classes = job, job.supervise, classes
        self.schedules = Schedules(self.config, job.optimizer, steps_per_epoch)
        self.networks = {"student": build(job, classes, device)}
        self.buffers: dict[str, Tensor] = {}

    def build_network(self, role: str) -> nn.Module:
        """A classifier of the same architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        return Classifier(backbone, ClassifierHead(self.job.model.width, self.classes), self.config.pooling)

    def step(self, step: Step) -> None:
        """One step of supervised training."""
        step.begin(self.schedules.at(step.number))
        for images, targets in step.micro_batches():  # (B, 3, S, S), (B, classes)
            with step.autocast():
                logits = step.forward(images)
            step.backward(soft_cross_entropy(logits, targets))
        gradients, norms = step.gradients()
        if step.finite:
            clip_together_(gradients, norms, self.config.clip_grad)
            step.optimizer.step()
            # No average of the weights (EMA), which code of this recipe offers: the trained weights are scored.


def clip_together_(gradients: list[Tensor], norms: Sequence[float], bound: float) -> None:
    """Scale all gradients together so that their common norm is at most ``bound``, in place; 0 = leave them."""
    norm = math.hypot(*norms)
    if bound and norm > bound:
        torch._foreach_mul_(gradients, bound / norm)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the batch of -sum(targets · log softmax(logits)), in float32; both (B, classes)."""
    return -(targets * F.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


# --- networks ------------------------------------------------------------------------------------------


class ClassifierHead(nn.Linear):
    """A linear layer (dim → classes). Weights depend on ``seed`` alone: truncated normal (0.02), biases zero."""

    def __init__(self, dim: int, classes: int, *, seed: int = 0) -> None:
        super().__init__(dim, classes)
        draw_layers_(self, seed)


class Classifier(nn.Module):
    """A backbone and a head. The head reads the CLS token after the last norm, or the mean of the patch tokens.

    Of a network of timm's without a CLS token it reads what timm's own classifier does.
    """

    def __init__(self, backbone: VisionTransformer, head: ClassifierHead, pooling: Pooling = "token") -> None:
        super().__init__()
        if getattr(backbone, "cls_token", None) is not None:
            backbone.global_pool = pooling  # timm's own pooling: the norm stays before it either way
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, S, S) to logits (B, classes)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits


def build(job: SupervisedJob, classes: int, device: torch.device) -> Classifier:
    """The classifier at its start; weights depend on ``job.seed`` alone."""
    backbone = job.backbone(device)
    head = ClassifierHead(job.model.width, classes, seed=job.seed).to(device)
    return Classifier(backbone, head, job.supervise.pooling).train()


# --- accuracy ------------------------------------------------------------------------------------------


def hits(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the label is among the ``k`` highest logits: bool (B,) of logits (B, classes) and labels int64 (B,).

    Of equal logits the lower class comes first; a row with a NaN is no hit.
    """
    true_logit = logits.gather(1, labels.view(-1, 1))
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels.view(-1, 1)
    before = (logits > true_logit) | ((logits == true_logit) & earlier)
    return (before.sum(1) < k) & ~logits.isnan().any(1)


class Accuracy:
    """Top-1 and top-5 accuracy in percent on a folder of labelled images: an observer of the training loop.

    Images: short side to size / 0.875 (256 for 224), bicubic, centre crop. They are dealt out to the ranks and put
    together again in the folder's order, so every image counts once whatever the number of ranks and the numbers are
    those of one process.
    """

    score = "top1"

    def __init__(self, folder: LabelledFolder, size: int, *, batch_size: int = 128, workers: int = 0) -> None:
        self.folder, self.size, self.batch_size, self.workers = folder, size, batch_size, workers

    def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
        """``{"top1": ..., "top5": ...}`` of a network in eval mode on ``here.device``, equal on all ranks.

        Raises :class:`DataError`, on every rank, if it fails on one: an image that cannot be read, no device memory.
        """
        top1, top5 = (100.0 * int(of_k.sum()) / len(self.folder) for of_k in self.hits(network, here))
        return {"top1": top1, "top5": top5}

    def hits(self, network: nn.Module, here: World) -> NDArray[np.bool_]:
        """Whether each image's class is the highest, and among the five highest: (2, n), images in the folder's order.

        Equal on all ranks; the network, and errors, as of a call.
        """

        def of_rank() -> NDArray[np.bool_]:
            numbers = range(here.rank, len(self.folder), here.size)
            found = torch.zeros(2, len(numbers), dtype=torch.bool, device=here.device)  # read once, at the end
            at = 0
            for images, labels in validation_batches(self.folder, numbers, self.size, self.batch_size, self.workers):
                truth = labels.to(here.device, non_blocking=True)
                logits = network(normalise(images.to(here.device, non_blocking=True)))
                found[:, at : at + len(labels)] = torch.stack([hits(logits, truth, k) for k in (1, 5)])
                at += len(labels)
            return found.cpu().numpy()

        every = np.zeros((2, len(self.folder)), dtype=np.bool_)
        for rank, part in enumerate(run_together(of_rank, "accuracy")):
            every[:, rank :: here.size] = part
        return every


def trained_classifier(job: SupervisedJob, checkpoint: Path) -> Classifier:
    """The classifier of a run's checkpoint, in eval mode on the CPU, skips with the weight that they had there.

    Raises :class:`WeightsError` unless every tensor fits ``job``, the run's.
    """
    head_file = checkpoint / "head.safetensors"
    head = {name.removeprefix("student."): tensor for name, tensor in load_tensors(head_file).items()}
    state = read_json(checkpoint / "state.json")
    backbone = from_config(job.model, weight_init="skip")
    classes = len(head["bias"]) if "bias" in head else 0
    network = Classifier(backbone, ClassifierHead(job.model.width, classes), job.supervise.pooling)
    SkipDial(job.model, job.supervise.epochs * state["steps_per_epoch"]).set_copy(network, state["step"])
    weights = exported_weights(checkpoint)
    load_strict(backbone, load_weights(weights)[0], weights)
    check_fit(network.head.state_dict(), head, head_file)  # a head may be 0 still: it starts so
    network.head.load_state_dict(head, strict=True)
    return network.eval()
