"""What a study will take, reckoned before anything runs and without its data: passes, hours, disk, peak disk.

Operations are counted in closed form (:mod:`dinoskip.models.flops`); GPU hours are operations / (a card's rate x an
assumed utilisation). Left out of them, because they are small or run on the CPU: optimizer updates, fitting probes,
TokenCut, k-NN. Measured hours are by the times of the stages that this study has finished, scaled by their work; where
none of a kind is, cuts by the rate of one CPU core. Images are counted as published; a folder whose size is not known
is taken for ImageNet-1k. Images of native size are taken as 500 x 375 (VOC, ADE20K) or 640 x 480 (COCO).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dinoskip.errors import DiskFull
from dinoskip.features.writer import human_bytes
from dinoskip.files import read_json
from dinoskip.models.build import DEPTH, SHAPES, VitConfig, from_config
from dinoskip.models.flops import supervised_step_flops, vit_flops
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.sections import StorageRules, StudyBase
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
CUT_SECONDS = 1.4e-8
"""Of one core of an Intel Xeon for a cut, times the square of its number of tokens: 20 ms at 1,200 of them
(``python -m benchmarks.bench_tokencut``)."""
_VALUE = 2  # bytes of a float16 feature
_CUT_VALUE = 3  # bytes that TokenCut leaves of a token at a block: a float16 of its eigenvector and its mask


def image_flops(model: VitConfig, recipe: PretrainConfig | SupervisedConfig, classes: int = 0) -> int:
    """Operations of a training step for one image, with all its views; ``classes`` of a supervised recipe."""
    if isinstance(recipe, SupervisedConfig):
        return supervised_step_flops(model, classes, recipe.augment.size)
    return recipe.cost(model).flops


@dataclass(frozen=True)
class Cost:
    """What a node takes: operations on the GPU, bytes that it leaves on disk, images that pass through a network.

    ``work`` is what its time grows with: operations of training and passes; cuts times tokens squared; else 1.
    """

    stage: str
    variant: str
    flop: float = 0.0
    disk: float = 0.0
    images: int = 0
    work: float = 1.0
    node: str = ""

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
            made.append(_of_features(_features(study, node.id, node.settings, model), node))
        elif node.stage == "tokencut":
            made.append(_tokencut(study, node, model))
        else:
            passes = [
                _features(
                    study, node.id, {**own, "dataset": {**node.settings["dataset"], "split": own["split"]}}, model
                )
                for key, own in node.settings.items()
                if key.startswith("features ")
            ]
            flop, images = sum(one.flop for one in passes), sum(one.images for one in passes)
            made.append(Cost(node.stage, node.variant, flop, images=images))
    return [replace(cost, node=node.id) for cost, node in zip(made, nodes, strict=True)]


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
    return Cost(node.stage, node.variant, flop, checkpoint * (len(recipe.keep_epochs) + 1), work=flop)


@dataclass(frozen=True)
class _Features:
    """Of features: images, tokens of each, operations of a pass over all, blocks, bytes of a store."""

    images: int
    tokens: int
    flop: float
    blocks: int
    disk: float


def _features(study: StudyBase, node: str, settings: Mapping[str, Any], variant: VitConfig | None) -> _Features:
    model, dataset = variant or VitConfig(), node.rpartition("/")[2]
    named = [one for one in sorted(study.data, key=len, reverse=True) if f"{dataset}-".startswith(f"{one}-")]
    count = count_images(study, named[0], settings["dataset"]["split"], settings["use"])
    width, patch = SHAPES[model.name]
    depth = model.depth or DEPTH
    blocks = depth if isinstance(settings["blocks"], str) else len(settings["blocks"])
    if settings["transform"]["mode"] in {"native", "rounded"}:
        sides = (640, 480) if settings["dataset"]["kind"].startswith("coco") else (500, 375)
        tokens = math.prod(math.ceil(side / patch) for side in sides)
    else:
        tokens = (settings["transform"]["size"] // patch) ** 2
    kept = {"classes": 1, "detection": tokens, "segmentation": tokens + 1}[settings["use"]]
    flop = float(vit_flops(model, round(math.sqrt(tokens)) * patch)) * count
    return _Features(count, tokens, flop, blocks, float(count) * kept * width * blocks * _VALUE)


def _of_features(features: _Features, node: Node) -> Cost:
    return Cost(node.stage, node.variant, features.flop, features.disk, features.images, work=features.flop)


def _tokencut(study: StudyBase, node: Node, model: VitConfig | None) -> Cost:
    """Cuts of stored features, or of windows, with the pass that they take."""
    window = node.settings.get("features store")
    settings = window or {"use": "detection", "transform": {"mode": "native"}, "blocks": study.evaluate.block_list}
    features = _features(study, node.id, {**settings, "dataset": node.settings["dataset"]}, model)
    cuts = features.images * (features.blocks + bool(node.settings["multiscale"]))
    left = features.images * features.tokens * features.blocks * _CUT_VALUE
    flop, images = (features.flop, features.images) if window else (0.0, 0)
    return Cost(node.stage, node.variant, flop, float(left), images, work=float(cuts) * features.tokens**2)


def rates(made: Sequence[Cost], outputs: Path) -> dict[str, float]:
    """Seconds a unit of work of each kind of stage: of those finished below ``outputs``, else a core's for cuts."""
    seconds, work = defaultdict[str, float](float), defaultdict[str, float](float)
    for cost in made:
        done = sorted((outputs / cost.node).glob("*/timing.json"), key=lambda path: path.stat().st_mtime)
        if done:
            seconds[cost.stage] += read_json(done[-1])["seconds"]
            work[cost.stage] += cost.work
    return {"tokencut": CUT_SECONDS, **{stage: seconds[stage] / work[stage] for stage in work if work[stage]}}


HEADER = ("stage", "count", "images passed", "GPU hours", "measured hours", "GB")


def lines(made: Sequence[Cost], card: str, measured: Mapping[str, float]) -> list[tuple[str, ...]]:
    """A row (:data:`HEADER`) for each kind of stage, for each variant that is trained, and the sums.

    ``measured`` are seconds a unit of work of some kinds of stages.
    """
    rows = []
    for stage in dict.fromkeys(cost.stage for cost in made):
        own = [cost for cost in made if cost.stage == stage]
        rows.append(_line(stage, own, card, measured))
    trained = dict.fromkeys(cost.variant for cost in made if cost.stage in {"pretrain", "supervise"})
    for variant in trained:
        own = [cost for cost in made if cost.variant == variant]
        rows.append(_line(f"  of them {variant}", own, card, measured))
    return [*rows, _line("all", made, card, measured)]


def _line(what: str, some: Sequence[Cost], card: str, measured: Mapping[str, float]) -> tuple[str, ...]:
    hours, disk = sum(cost.hours(CARDS[card]) for cost in some), sum(cost.disk for cost in some) / 1e9
    here = sum(cost.work * measured.get(cost.stage, 0.0) for cost in some) / 3600
    images = sum(cost.images for cost in some)
    return (
        what, str(len(some)), f"{images:,}" if images else "", _hours(hours), _hours(here),
        f"{disk:,.1f}" if disk >= 0.05 else "",
    )  # fmt: skip


def _hours(hours: float) -> str:
    return f"{hours:,.{1 if hours >= 1 else 3}f}" if hours else ""


def peak_disk(made: Sequence[Cost], readers: Mapping[str, Collection[str]], rules: StorageRules) -> float:
    """Most bytes on disk at once, if the nodes run in the order of ``made``.

    ``readers`` are the nodes that read each store, which may go after the last of them. Raises :class:`DiskFull` if the
    limit cannot be kept.
    """
    stores: dict[str, float] = {}
    left = {store: set(of) for store, of in readers.items()}
    other = peak = 0.0
    for cost in made:
        if cost.node not in readers:
            other += cost.disk
        else:
            unused = [store for store in stores if not left[store]]
            while rules.limit is not None and unused and sum(stores.values()) + cost.disk > rules.limit:
                del stores[unused.pop(0)]
            stores[cost.node] = cost.disk
            if rules.limit is not None and sum(stores.values()) > rules.limit:
                raise DiskFull(
                    f"storage.limit: {human_bytes(rules.limit)} do not hold the {len(stores)} stores that are needed at"
                    f" once with {cost.node}, {human_bytes(sum(stores.values()))}",
                    "raise it, evaluate fewer blocks, or set evaluate.features=window",
                )
        peak = max(peak, other + sum(stores.values()))
        for of in left.values():
            of.discard(cost.node)
        if rules.at_once:
            stores = {store: size for store, size in stores.items() if left[store]}
    return peak
