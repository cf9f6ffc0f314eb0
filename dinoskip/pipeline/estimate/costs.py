"""Cost of a study: operations and disk are computed, seconds are at the rates of its finished stages on this machine.

Operations are counted in closed form (:mod:`dinoskip.settings.flops`) for the images that are there
(:mod:`dinoskip.pipeline.estimate.work`). GPU hours are the operations of training and of passes over images / the rate
that a card reaches (:mod:`dinoskip.pipeline.estimate.cards`). Images of native size are taken to be as large as the
first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dinoskip.errors import DiskFull
from dinoskip.pipeline.estimate.cards import CARDS
from dinoskip.pipeline.estimate.work import PassedImages, StudyImages, StudyWork
from dinoskip.pipeline.gallery.settings import GallerySettings
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.progress import past_seconds, rates
from dinoskip.pipeline.sections import StorageRules, StudyBase
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.settings import FeatureSettings, TaskSettings
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.stages.sweep import SweepSection, short_recipe
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.variants import Variant
from dinoskip.runtime.arithmetic import Precision
from dinoskip.runtime.console import human_bytes
from dinoskip.settings.config import dump
from dinoskip.settings.flops import supervised_step_flops, vit_parameters
from dinoskip.settings.vit_config import MLP_RATIO, VitConfig
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.supervised_config import SupervisedConfig
from eval.tokencut.memory import drawn_bytes

_VALUE = 2  # bytes of a float16 feature


def image_flops(model: VitConfig, recipe: PretrainConfig | SupervisedConfig, classes: int = 0) -> int:
    """Operations of a training step for one image, with all its views; ``classes`` of a supervised recipe."""
    if isinstance(recipe, SupervisedConfig):
        return supervised_step_flops(model, classes, recipe.augment.size)
    return recipe.cost(model).flops


@dataclass(frozen=True)
class Cost:
    """Cost of a node: operations on the GPU, images that pass through a network, bytes that it leaves on disk.

    ``memory`` is the peak of bytes that its graphs of tokens, its features of all images and its windows of features
    take on this machine, by the rules that bound them; 0 where it has none of them. Networks and their activations come
    on top.

    ``work`` is what its time grows with, in units that nodes of one ``kind`` share: operations where it trains or sends
    images through a network; the number of values where it reads features; else 1. The kind is the stage, with the
    optimizer of a training, the use of features and the sort of data that is composed. ``precision`` is that of its
    operations; trainings are taken to be in bfloat16.
    """

    stage: str
    variant: str
    flop: float = 0.0
    disk: float = 0.0
    images: int = 0
    work: float = 1.0
    node: str = ""
    kind: str = ""
    precision: Precision = "bf16"
    memory: float = 0.0

    def hours(self, card: str) -> float:
        """GPU hours on a card of :data:`CARDS`."""
        return self.flop / (CARDS[card].reached(self.precision) * 1e12) / 3600


def costs(images: StudyImages, study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node]) -> list[Cost]:
    """The cost of every node. Raises :class:`DataError` where images are to be listed and are not there."""
    by_name = {variant.name: variant for variant in variants}
    swept = {variant.sweep: variant for variant in reversed(variants)}
    recipe, reckoned = recipe_of(study), StudyWork(images, variants, nodes)
    asked = study.evaluate.precision
    passes: Precision = "bf16" if asked == "auto" else asked  # auto on a card is bf16
    memory = _peaks(reckoned, study, nodes)
    of_nodes: list[Cost] = []
    for node in nodes:
        variant = swept[node.id] if node.stage == "sweep" else by_name.get(node.variant)
        if node.stage in {"pretrain", "supervise", "sweep"} and recipe is not None and variant is not None:
            cost = _trained(images, study, node, recipe, variant)
        elif node.stage == "weights" and variant is not None and variant.model is not None:
            cost = Cost(node.stage, node.variant, disk=4.0 * vit_parameters(variant.model))
        elif node.stage == "data":
            cost = Cost(node.stage, node.variant, kind=f"data {study.data[node.id.rpartition('/')[2]].kind}")
        else:
            cost = replace(_evaluated(node, reckoned), precision=passes, memory=memory.get(node.id, 0.0))
        of_nodes.append(replace(cost, node=node.id, kind=cost.kind or node.stage))
    return of_nodes


def _trained(
    images: StudyImages, study: StudyBase, node: Node, recipe: PretrainSection | SuperviseSection, variant: Variant
) -> Cost:
    """A training; or a sweep, short ones one after another, of whose files only one of a few bytes stays."""
    model, optimizer = variant.model, variant.optimizer
    assert model is not None
    assert optimizer is not None
    if node.stage == "sweep":
        recipe = type(recipe).model_validate(short_recipe(dump(recipe), study.section(SweepSection)))
    classes = 0 if isinstance(recipe, PretrainSection) else images.classes(recipe.dataset)
    seen, _ = trained_images(images, study, sweep=node.stage == "sweep")
    flop = float(image_flops(model, recipe, classes)) * seen
    disk = 0.0 if node.stage == "sweep" else checkpoints_bytes(model, recipe, optimizer.state_bytes)
    return Cost(node.stage, node.variant, flop, disk, work=flop, kind=f"{node.stage} {optimizer.name}")


def checkpoints_bytes(model: VitConfig, recipe: PretrainConfig | SupervisedConfig, state_bytes: float) -> float:
    """Bytes of the checkpoints that a training leaves; its optimizer's state has ``state_bytes`` a parameter."""
    parameters, copies = vit_parameters(model), 1
    if isinstance(recipe, PretrainConfig):
        step_cost = recipe.cost(model)
        parameters, copies = parameters + step_cost.head, step_cost.networks
    return parameters * (4.0 * copies + state_bytes) * (len(recipe.keep_epochs) + 1)  # float32 has 4 bytes


def trained_images(images: StudyImages, study: StudyBase, *, sweep: bool) -> tuple[int, int]:
    """Return the number of images that a training, or all short runs of a sweep, processes, and its batch size."""
    recipe, runs = recipe_of(study), 1
    assert recipe is not None
    if sweep:
        section = study.section(SweepSection)
        recipe, runs = type(recipe).model_validate(short_recipe(dump(recipe), section)), len(section.lr)
    use = "pretraining" if isinstance(recipe, PretrainSection) else "classes"
    seen = images.count(recipe.dataset, "train", use) // recipe.batch_size * recipe.epochs * recipe.batch_size
    return seen * runs, recipe.batch_size


def _evaluated(node: Node, reckoned: StudyWork) -> Cost:
    """A node that exports features, reads them, or sends images through its network; of pages and the like nothing."""
    passed, read = reckoned.passed(node), reckoned.read(node)
    flop, disk, kind, settings = sum(part.flop for part in passed), 0.0, node.stage, node.settings
    pairwise = isinstance(settings, TaskSettings) and settings.record.pairwise
    values = sum(part.values * (part.tokens if pairwise else 1) for part in read)
    if isinstance(settings, FeatureSettings):
        (store,), use = passed, settings.use
        tokens, cls = settings.reads
        kept = store.tokens * tokens + cls
        channels = store.network.width * sum(MLP_RATIO if facet == "hidden" else 1 for facet in settings.facets)
        disk, kind = float(store.images) * kept * channels * store.blocks * _VALUE, f"features {use}"
    elif isinstance(settings, TaskSettings):
        disk = float(sum(part.images * part.tokens * part.blocks for part in read) * settings.record.disk_per_token)
    images = sum(part.images for part in passed)
    return Cost(node.stage, node.variant, flop, disk, images, values or flop or 1.0, kind=kind)


def peak_memory(
    images: StudyImages, study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node]
) -> dict[str, float]:
    """Peak bytes by node (:attr:`Cost.memory`) of those that have any; only evaluated sets are listed.

    Raises :class:`DataError` where images are to be listed and are not there.
    """
    return _peaks(StudyWork(images, variants, nodes), study, nodes)


def _peaks(reckoned: StudyWork, study: StudyBase, nodes: Sequence[Node]) -> dict[str, float]:
    by_node = {node.id: _memory(node, reckoned, study.storage.window) for node in nodes}
    return {name: peak for name, peak in by_node.items() if peak}


def _memory(node: Node, reckoned: StudyWork, window: float) -> float:
    """Peak bytes of what a node bounds by its task's rules or the gallery's: graphs of tokens, features, a window."""
    settings = node.settings
    if isinstance(settings, GallerySettings):
        return float(drawn_bytes(max((network.width for network in reckoned.networks.values()), default=0)))
    if not isinstance(settings, TaskSettings):
        return 0.0
    sizes = [(part.tokens, part.network.width) for part in reckoned.read(node)]
    graphs = max((settings.record.memory(settings.section, *size) for size in sizes), default=0)
    reads = [(part.images, part.tokens, part.network.width, part.blocks) for part in reckoned.read(node)]
    held = settings.record.held(settings.section, reads)
    return float(graphs + held) + max((min(window, _bytes(part)) for part in reckoned.windows(node)), default=0.0)


def _bytes(features: PassedImages) -> float:
    """Bytes of the tokens of features; of windows with all of them, no more are held."""
    return float(features.images * features.tokens * features.network.width * features.blocks * _VALUE)


def measured_rates(every_cost: Sequence[Cost], outputs: Path, machine: str) -> dict[str, float]:
    """Seconds a unit of work, by kind, of the newest output below ``outputs`` of each node, whatever its settings."""
    times = {cost.node: (outputs / cost.node).glob("*/timing.json") for cost in every_cost}
    newest = {node: max(found, key=lambda path: path.stat().st_mtime, default=None) for node, found in times.items()}
    seconds = past_seconds({node: path.parent for node, path in newest.items() if path is not None}, machine)
    return rates(seconds, {cost.node: (cost.kind, cost.work) for cost in every_cost})


HEADER = ("stage", "count", "images passed", "GPU hours", "hours here", "GB")


def lines(every_cost: Sequence[Cost], card: str, measured: Mapping[str, float]) -> list[tuple[str, ...]]:
    """A row (:data:`HEADER`) for each kind of stage, for each variant that is trained, and the sums.

    ``measured`` are seconds a unit of work, by kind; hours of other kinds are not known.
    """
    rows = [
        _line(stage, [cost for cost in every_cost if cost.stage == stage], card, measured)
        for stage in dict.fromkeys(cost.stage for cost in every_cost)
    ]
    trained = dict.fromkeys(cost.variant for cost in every_cost if cost.stage in {"pretrain", "supervise"})
    rows += [
        _line(f"  of them {name}", [cost for cost in every_cost if cost.variant == name], card, measured)
        for name in trained
    ]
    return [*rows, _line("all", every_cost, card, measured)]


def _line(what: str, costs_of: Sequence[Cost], card: str, measured: Mapping[str, float]) -> tuple[str, ...]:
    hours, disk = sum(cost.hours(card) for cost in costs_of), sum(cost.disk for cost in costs_of) / 1e9
    known = [cost.work * measured[cost.kind] / 3600 for cost in costs_of if cost.kind in measured]
    more = "> " if 0 < len(known) < len(costs_of) else ""
    images = sum(cost.images for cost in costs_of)
    return (
        what, str(len(costs_of)), f"{images:,}" if images else "", _hours(hours), f"{more}{_hours(sum(known))}",
        f"{disk:,.1f}" if disk >= 0.05 else "",  # less prints as 0.0
    )  # fmt: skip


def _hours(hours: float) -> str:
    return f"{hours:,.{1 if hours >= 1 else 3}f}" if hours else ""


def peak_disk(every_cost: Sequence[Cost], readers: Mapping[str, Collection[str]], rules: StorageRules) -> float:
    """Most bytes on disk at once, if the nodes run in the order of ``every_cost``.

    ``readers`` are the nodes that read each store, which may go after the last of them. Raises :class:`DiskFull` if the
    limit cannot be kept.
    """
    stores: dict[str, float] = {}
    left = {store: set(of) for store, of in readers.items()}
    other = peak = 0.0
    for cost in every_cost:
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
