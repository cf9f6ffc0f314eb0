"""What a study will take, reckoned before anything runs and without its data: passes, hours, disk, peak disk.

Operations are counted in closed form (:mod:`dinoskip.models.flops`, :mod:`dinoskip.pipeline.work`). GPU hours are those
of training and passes over images / (a card's rate x an assumed utilisation). Hours here are measured, by the times of
the stages that this study has finished, scaled by their work; or estimated, where none of a kind is: operations by the
rate of this machine, which is timed (:class:`Speed`), and what the host does by constants. Images are counted as
published; a folder whose size is not known is taken for ImageNet-1k. Images of native size are taken as 500 x 375 (VOC,
ADE20K) or 640 x 480 (COCO).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import torch

from dinoskip.config import dump
from dinoskip.distributed import choose_device
from dinoskip.environment import matmul_gflops
from dinoskip.errors import DiskFull
from dinoskip.features.writer import human_bytes
from dinoskip.files import read_json
from dinoskip.models.build import HEAD_DIM, SHAPES, VitConfig
from dinoskip.models.export import model_shapes
from dinoskip.models.flops import block_flops, supervised_step_flops
from dinoskip.models.vit import Block
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.sections import StorageRules, StudyBase
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.stages.sweep import SweepSection, short_recipe
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.variants import Variant
from dinoskip.pipeline.work import Passed, StudyWork, count_images, network_of
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.supervised import SupervisedConfig

CARDS: Mapping[str, float] = {"a100": 312.0, "h100": 989.0}
"""Dense bfloat16 TFLOP/s of the SXM cards, from their makers' data sheets."""
UTILISATION = 0.4
"""Assumed share of the rate that a step reaches; ``python -m benchmarks.bench_step`` measures it."""
CLASSES = 1000  # of ImageNet-1k
_STATE_BYTES = {"adamw": 8.0, "soap": 38.5, "kl_shampoo": 38.5, "muon": 4.0}  # of an optimizer, a parameter
_VALUE = 2  # bytes of a float16 feature
_CUT_VALUE = 3  # bytes that TokenCut leaves of a token at a block: a float16 of its eigenvector and its mask


def image_flops(model: VitConfig, recipe: PretrainConfig | SupervisedConfig, classes: int = 0) -> int:
    """Operations of a training step for one image, with all its views; ``classes`` of a supervised recipe."""
    if isinstance(recipe, SupervisedConfig):
        return supervised_step_flops(model, classes, recipe.augment.size)
    return recipe.cost(model).flops


@dataclass(frozen=True)
class Speed:
    """Operations a second of this machine: of a ViT's block, forward, timed; and cores for what the host does."""

    flops: float
    cores: int

    @classmethod
    def measured(cls, device: str = "auto", width: int = 384) -> Speed:
        """Time a block of so many channels, once a process: half a second."""
        return cls(_block_rate(choose_device(device), width), torch.get_num_threads())


_TIMED = 0.25  # seconds


@cache
def _block_rate(device: torch.device, width: int) -> float:
    """FLOP/s of a ViT's block over 4 images of 196 patches: on a CPU the better of one thread's and all threads'.

    On a busy machine threads wait for each other, all of them at times 20 times as slow as one. On a GPU the rate of
    large products in bfloat16 times :data:`UTILISATION`.
    """
    if device.type == "cuda":
        return matmul_gflops(device, torch.bfloat16) * 1e9 * UTILISATION
    threads = torch.get_num_threads()
    try:
        return max(_timed_block(width, count) for count in sorted({1, threads}))
    finally:
        torch.set_num_threads(threads)


def _timed_block(width: int, threads: int) -> float:
    """The median over a quarter of a second: what others steadily take counts, a pause does not."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        block = Block(width, max(1, width // HEAD_DIM), qkv_bias=True).eval()
        tokens = torch.randn(4, 197, width, generator=generator)
        block(tokens)  # the first loads the library
        times, until = [], time.perf_counter() + _TIMED
        while time.perf_counter() < until:
            began = time.perf_counter()
            block(tokens)
            times.append(time.perf_counter() - began)
        return 4 * block_flops(197, width) / median(times)


START = 0.15  # seconds of any stage
PASS_SHARE, TRAINING_SHARE, FIT_SHARE = 0.7, 0.6, 0.25
"""Shares of the block's rate that passes over images, training and narrow products reach on a CPU."""
_PRECONDITIONED = 5.0  # operations of an optimizer with bases, a parameter and channel of the network and step


@dataclass(frozen=True)
class Cost:
    """What a node takes: operations on the GPU, bytes that it leaves on disk, images that pass through a network.

    ``fits`` are operations of narrow products, ``host`` seconds of what the host does on one core. ``work`` is what its
    time grows with: operations of training and passes; cuts times tokens squared; else 1.
    """

    stage: str
    variant: str
    flop: float = 0.0
    disk: float = 0.0
    images: int = 0
    work: float = 1.0
    node: str = ""
    fits: float = 0.0
    host: float = 0.0

    def hours(self, tflops: float, utilisation: float = UTILISATION) -> float:
        """GPU hours at a rate in TFLOP/s."""
        return self.flop / (tflops * 1e12 * utilisation) / 3600

    def seconds(self, speed: Speed) -> float:
        """Estimated seconds on a machine."""
        share = TRAINING_SHARE if self.stage in {"pretrain", "supervise", "sweep"} else PASS_SHARE
        return START + (self.flop / share + self.fits / FIT_SHARE) / speed.flops + self.host


def costs(study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node]) -> list[Cost]:
    """The cost of every node."""
    models = {variant.name: variant.model for variant in variants if variant.model is not None}
    optimizers = {variant.name: variant.optimizer.name for variant in variants if variant.optimizer is not None}
    recipe, reckoned = recipe_of(study), StudyWork(study, variants, nodes)
    swept = {variant.sweep: variant for variant in reversed(variants)}
    made: list[Cost] = []
    for node in nodes:
        model = models.get(node.variant)
        if node.stage in {"pretrain", "supervise"} and model is not None and recipe is not None:
            made.append(_training(study, node, model, recipe, optimizers[node.variant]))
        elif node.stage == "sweep":
            made.append(_sweep(study, node, swept[node.id]))
        elif node.stage == "weights" and model is not None:
            made.append(Cost(node.stage, node.variant, disk=4.0 * _parameters(model)))
        elif node.stage == "features":
            made.append(_exported(node, reckoned.stores[node.id]))
        else:
            work = reckoned.of(node)
            cost = Cost(node.stage, node.variant, work.flop, images=work.images, fits=work.fits, host=work.host)
            made.append(_cut(cost, node, reckoned) if node.stage == "tokencut" else cost)
    return [replace(cost, node=node.id) for cost, node in zip(made, nodes, strict=True)]


def _parameters(model: VitConfig) -> int:
    return sum(math.prod(shape) for shape in model_shapes(model).values())


def _sweep(study: StudyBase, node: Node, variant: Variant) -> Cost:
    """The short runs of a sweep, one after another; of their files only one of a few bytes stays."""
    section, recipe = study.section(SweepSection), study.section(PretrainSection)
    assert variant.model is not None
    assert variant.optimizer is not None
    short = type(recipe).model_validate(short_recipe(dump(recipe), section))
    once, rates = _training(study, node, variant.model, short, variant.optimizer.name), len(section.lr)
    return replace(once, flop=rates * once.flop, work=rates * once.work, fits=rates * once.fits,
                   host=rates * once.host, disk=0.0)  # fmt: skip


def _training(
    study: StudyBase, node: Node, model: VitConfig, recipe: PretrainSection | SuperviseSection, optimizer: str
) -> Cost:
    images = count_images(study, recipe.dataset, "train", "classes")
    steps = images // recipe.batch_size * recipe.epochs
    flop = float(image_flops(model, recipe, CLASSES)) * steps * recipe.batch_size
    own, copies = _parameters(model), 1
    fits = 0.0 if optimizer == "adamw" else _PRECONDITIONED * own * SHAPES[model.name][0] * steps
    if isinstance(recipe, PretrainSection):
        made = recipe.cost(model)
        own, copies = own + made.head, made.networks
    checkpoint = own * (4.0 * copies + _STATE_BYTES.get(optimizer, 8.0))
    host = (_SEEN * steps * recipe.batch_size) + 2.0
    disk = checkpoint * (len(recipe.keep_epochs) + 1)
    return Cost(node.stage, node.variant, flop, disk, work=flop, fits=fits, host=host)


_SEEN = 0.001  # seconds of one core to read and augment an image of a training


def _exported(node: Node, passed: Passed) -> Cost:
    """A store of all blocks' tokens."""
    work = passed.work
    kept = {"classes": 1, "detection": passed.tokens, "segmentation": passed.tokens + 1}[node.settings["use"]]
    disk = float(passed.images) * kept * passed.network.width * passed.blocks * _VALUE
    return Cost(node.stage, node.variant, work.flop, disk, work.images, work=work.flop, host=work.host)


def _cut(cost: Cost, node: Node, reckoned: StudyWork) -> Cost:
    """Cuts of stored features, or of windows: what they leave, and what their time grows with."""
    store = reckoned.read(node)["store"]
    cuts = store.images * (store.blocks + bool(node.settings["multiscale"]))
    left = float(store.images * store.tokens * store.blocks * _CUT_VALUE)
    return replace(cost, disk=left, work=float(cuts) * store.tokens**2)


def speed_for(variants: Sequence[Variant], device: str = "auto") -> Speed:
    """The speed of this machine for the widest of the networks."""
    return Speed.measured(device, max((network_of(variant).width for variant in variants), default=384))


def expected_seconds(
    study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node], device: str = "auto"
) -> dict[str, float]:
    """Estimated seconds of every node, on this machine."""
    speed = speed_for(variants, device)
    return {cost.node: cost.seconds(speed) for cost in costs(study, variants, nodes)}


def rates(made: Sequence[Cost], outputs: Path) -> dict[str, float]:
    """Seconds a unit of work of each kind of stage that has finished below ``outputs``."""
    seconds, work = defaultdict[str, float](float), defaultdict[str, float](float)
    for cost in made:
        done = sorted((outputs / cost.node).glob("*/timing.json"), key=lambda path: path.stat().st_mtime)
        if done:
            seconds[cost.stage] += read_json(done[-1])["seconds"]
            work[cost.stage] += cost.work
    return {stage: seconds[stage] / work[stage] for stage in work if work[stage]}


def hours_here(cost: Cost, measured: Mapping[str, float], speed: Speed) -> float:
    """Hours of a node here: by ``measured`` seconds a unit of work of its kind, else estimated."""
    own = measured.get(cost.stage)
    return (cost.seconds(speed) if own is None else cost.work * own) / 3600


HEADER = ("stage", "count", "images passed", "GPU hours", "hours here", "known", "GB")


def lines(made: Sequence[Cost], card: str, measured: Mapping[str, float], speed: Speed) -> list[tuple[str, ...]]:
    """A row (:data:`HEADER`) for each kind of stage, for each variant that is trained, and the sums.

    ``measured`` are seconds a unit of work of some kinds of stages; others are estimated for a machine's speed.
    """
    rows = []
    for stage in dict.fromkeys(cost.stage for cost in made):
        own = [cost for cost in made if cost.stage == stage]
        rows.append(_line(stage, own, card, measured, speed))
    trained = dict.fromkeys(cost.variant for cost in made if cost.stage in {"pretrain", "supervise"})
    for variant in trained:
        own = [cost for cost in made if cost.variant == variant]
        rows.append(_line(f"  of them {variant}", own, card, measured, speed))
    return [*rows, _line("all", made, card, measured, speed)]


def _line(what: str, some: Sequence[Cost], card: str, measured: Mapping[str, float], speed: Speed) -> tuple[str, ...]:
    hours, disk = sum(cost.hours(CARDS[card]) for cost in some), sum(cost.disk for cost in some) / 1e9
    here = sum(hours_here(cost, measured, speed) for cost in some)
    known = {"measured" if cost.stage in measured else "estimated" for cost in some}
    images = sum(cost.images for cost in some)
    return (
        what, str(len(some)), f"{images:,}" if images else "", _hours(hours), _hours(here),
        known.pop() if len(known) == 1 else "in part", f"{disk:,.1f}" if disk >= 0.05 else "",
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
