"""What a study will take, reckoned before anything runs and without its data: GPU hours, disk, peak disk.

Operations are counted in closed form (:mod:`dinoskip.models.flops`); hours are operations / (a card's rate x an assumed
utilisation). Left out, because they are small or run on the CPU: optimizer updates, fitting probes, TokenCut, k-NN.
Images are counted as published; a folder whose size is not known is taken for ImageNet-1k. Images of native size are
taken as 500 x 375 (VOC, ADE20K) or 640 x 480 (COCO).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dinoskip.models.build import DEPTH, SHAPES, VitConfig, from_config
from dinoskip.models.flops import supervised_step_flops, vit_flops
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.variants import Variant
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.supervised import SupervisedConfig

CARDS: Mapping[str, float] = {"a100": 312.0, "h100": 989.0}
"""Dense bfloat16 TFLOP/s of the SXM cards, from their makers' data sheets."""
UTILISATION = 0.4
"""Assumed share of the rate that a step reaches; ``python -m benchmarks.bench_step`` measures it."""
IMAGENET = {"train": 1_281_167, "val": 50_000}
CLASSES = 1000
_STATE_BYTES = {"adamw": 8.0, "soap": 38.5, "kl_shampoo": 38.5, "muon": 4.0}  # of an optimizer, a parameter
_VALUE = 2  # bytes of a float16 feature


def image_flops(model: VitConfig, recipe: PretrainConfig | SupervisedConfig, classes: int = 0) -> int:
    """Operations of a training step for one image, with all its views; ``classes`` of a supervised recipe."""
    if isinstance(recipe, SupervisedConfig):
        return supervised_step_flops(model, classes, recipe.augment.size)
    return recipe.cost(model).flops


@dataclass(frozen=True)
class Cost:
    """What a node takes: operations on the GPU, and bytes that it leaves on disk."""

    stage: str
    variant: str
    flop: float = 0.0
    disk: float = 0.0

    def hours(self, tflops: float, utilisation: float = UTILISATION) -> float:
        """GPU hours at a rate in TFLOP/s."""
        return self.flop / (tflops * 1e12 * utilisation) / 3600


def count_images(study: StudyBase, name: str, split: str, use: str) -> int:
    """Published images of a split of one of the study's data sets, its subset where one is asked for."""
    config: Any = study.data[name]
    if split == "train" and getattr(config, "subset", None):
        return int(config.subset)
    wanted = getattr(config, "train_list", split) if split == "train" and use == "segmentation" else split
    splits = config.published_splits(Path(getattr(config, "root", ".")))
    of_use = [one.expected for one in splits if (one.task, one.split) == (use, wanted)]
    of_split = [one.expected for one in splits if one.split == wanted or len(splits) == 1]
    known = [count for count in (*of_use, *of_split) if count]
    return known[0] if known else IMAGENET.get(wanted, IMAGENET["val"])


def costs(study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node]) -> list[Cost]:
    """The cost of every node that trains, keeps weights or exports features."""
    models = {variant.name: variant.model for variant in variants if variant.model is not None}
    optimizers = {variant.name: variant.optimizer.name for variant in variants if variant.optimizer is not None}
    recipe = recipe_of(study)
    made: list[Cost] = []
    for node in nodes:
        model = models.get(node.variant)
        if node.stage in {"pretrain", "supervise"} and model is not None and recipe is not None:
            made.append(_training(study, node, model, recipe, optimizers[node.variant]))
        elif node.stage == "weights" and model is not None:
            made.append(Cost(node.stage, node.variant, disk=4.0 * _parameters(model)))
        elif node.stage == "features":
            made.append(_features(study, node, model or VitConfig()))
        else:
            made.append(Cost(node.stage, node.variant))
    return made


def _parameters(model: VitConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in from_config(model).parameters())


def _training(
    study: StudyBase, node: Node, model: VitConfig, recipe: PretrainSection | SuperviseSection, optimizer: str
) -> Cost:
    images = count_images(study, recipe.dataset, "train", "classes")
    steps = images // recipe.batch_size
    flop = float(image_flops(model, recipe, CLASSES)) * steps * recipe.batch_size * recipe.epochs
    own, copies = _parameters(model), 1
    if isinstance(recipe, PretrainSection):
        made = recipe.cost(model)
        own, copies = own + made.head, made.networks
    checkpoint = own * (4.0 * copies + _STATE_BYTES.get(optimizer, 8.0))
    return Cost(node.stage, node.variant, flop, checkpoint * (len(recipe.keep_epochs) + 1))


def _features(study: StudyBase, node: Node, model: VitConfig) -> Cost:
    settings = node.settings
    dataset = node.id.rpartition("/")[2]
    name = next(one for one in sorted(study.data, key=len, reverse=True) if dataset.startswith(f"{one}-"))
    count = count_images(study, name, settings["dataset"]["split"], settings["use"])
    width, patch = SHAPES[model.name]
    depth = model.depth or DEPTH
    blocks = depth if isinstance(settings["blocks"], str) else len(settings["blocks"])
    if settings["transform"]["mode"] in {"native", "rounded"}:
        sides = (640, 480) if settings["dataset"]["kind"].startswith("coco") else (500, 375)
        tokens = math.prod(math.ceil(side / patch) for side in sides)
    else:
        tokens = (settings["transform"]["size"] // patch) ** 2
    kept = {"classes": 1, "detection": tokens, "segmentation": tokens + 1}[settings["use"]]
    forward = vit_flops(model, round(math.sqrt(tokens)) * patch)
    return Cost(node.stage, node.variant, float(forward) * count, float(count) * kept * width * blocks * _VALUE)


def lines(made: Sequence[Cost], card: str) -> list[tuple[str, str, str, str]]:
    """A row a kind of stage, one for the features of a single checkpoint, and the sums: count, GPU hours, GB."""
    rows = []
    for stage in dict.fromkeys(cost.stage for cost in made):
        own = [cost for cost in made if cost.stage == stage]
        rows.append(_line(stage, str(len(own)), own, card))
    trained = dict.fromkeys(cost.variant for cost in made if cost.stage in {"pretrain", "supervise"})
    for variant in trained:
        own = [cost for cost in made if cost.variant == variant]
        rows.append(_line(f"  of them {variant}", str(len(own)), own, card))
    return [*rows, _line("all", str(len(made)), made, card)]


def _line(what: str, count: str, some: Sequence[Cost], card: str) -> tuple[str, str, str, str]:
    hours, disk = sum(cost.hours(CARDS[card]) for cost in some), sum(cost.disk for cost in some) / 1e9
    return what, count, f"{hours:,.{1 if hours >= 1 else 3}f}" if hours else "", f"{disk:,.1f}" if disk >= 0.05 else ""


def peak_disk(made: Sequence[Cost]) -> float:
    """Most bytes on disk at once: nothing is removed while a study runs, so it is all of it."""
    return sum(cost.disk for cost in made)
