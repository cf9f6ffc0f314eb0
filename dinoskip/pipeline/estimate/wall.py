"""Wall time of a study on a number of GPUs: seconds of each node on a card, and a greedy schedule of them.

Trainings and passes over images take their operations / the rate that the card reaches
(:mod:`dinoskip.pipeline.estimate.cards`), a training on several GPUs its share of them; on top come SOAP's products and
decompositions, reading of images, cuts of graphs and probes. Cuts and reading are as measured (docs/measured.md), the
others are operations that are counted. Queues, the start of processes and exchange between GPUs are not included.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dinoskip import optim
from dinoskip.io.parts import HELPING
from dinoskip.pipeline.estimate.cards import CARDS
from dinoskip.pipeline.estimate.costs import Cost, trained_images
from dinoskip.pipeline.estimate.work import StudyImages, StudyWork
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.scheduling import longest_paths
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.settings import TaskSettings
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.variants import Variant

CUT, CUT_TOKEN = 0.09e-3, 0.84e-6
"""Seconds of a cut at one block on an H100: 1,331 images/s of 784 tokens and 607 of 1,850 (2026-11-27) on one line."""
READ = 416.0
"""JPEG images that one core decodes and resizes a second, beside an H100 (2026-11-27); all cores of a job read."""
READ_MOST = 1543.0  # of 16 cores there
CLASSES = 150  # that a probe tells apart: ADE20K's; others have fewer, of which its time depends less than on reading
OTHER = 30.0  # seconds of a node of which nothing is counted: to begin, to open what it reads, to write
OPTIMIZER_SHARE = 0.6  # of the float32 peak that products of float32 matrices reach, as in benchmarks/scaling.py
QR = 1e12  # operations a second of a QR decomposition of matrices of side 384 to 3,072 on an H100


def node_seconds(
    images: StudyImages, study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node],
    every_cost: Sequence[Cost], card: str, *, ranks: int, cores: int,
) -> dict[str, float]:  # fmt: skip
    """Seconds of every node on a card of :data:`CARDS`; trainings have ``ranks`` of them, a rank ``cores``."""
    reckoned, by_name = StudyWork(images, variants, nodes), {variant.name: variant for variant in variants}
    swept = {variant.sweep: variant for variant in reversed(variants)}
    seconds = {}
    for node, cost in zip(nodes, every_cost, strict=True):
        if node.stage in {"pretrain", "supervise", "sweep"}:
            variant = swept[node.id] if node.stage == "sweep" else by_name[node.variant]
            spent = cost.hours(card) * 3600 / ranks + _optimizer(images, study, variant, card, ranks, node.stage)
        else:
            reading = cost.images / min(READ * cores, READ_MOST)
            spent = OTHER + max(cost.hours(card) * 3600, reading) + _measuring(node, reckoned, card)
        seconds[node.id] = spent
    return seconds


def _measuring(node: Node, reckoned: StudyWork, card: str) -> float:
    """Cuts of graphs, or fits of heads, after the features are there."""
    settings, memory = node.settings, CARDS["h100"].memory / CARDS[card].memory
    if not isinstance(settings, TaskSettings):
        return 0.0
    read = reckoned.read(node)
    if settings.record.pairwise:
        cuts = sum(part.images * part.blocks * (CUT + CUT_TOKEN * part.tokens) for part in read)
        return cuts * memory * max(1, len(getattr(settings.section, "tau", ())))
    epochs, rates = getattr(settings.section, "epochs", 0), getattr(settings.section, "learning_rates", ())
    if not epochs or not read:
        return 0.0
    flop = 6.0 * read[0].values * CLASSES * len(rates) * epochs  # forward, and the gradients of heads and of features
    return flop * getattr(settings.section, "seeds", 1) / (CARDS[card].reached("tf32") * 1e12)


def _optimizer(images: StudyImages, study: StudyBase, variant: Variant, card: str, ranks: int, stage: str) -> float:
    """Seconds of a training that an optimizer with matrices takes for its own products: of the rank that owns most."""
    recipe, model, config = recipe_of(study), variant.model, variant.optimizer
    if recipe is None or model is None or config is None:
        return 0.0
    given: Any = recipe
    dims = ("out_dim", "hidden_dim", "bottleneck_dim")
    head = (given.out_dim, given.hidden_dim, given.bottleneck_dim) if all(hasattr(given, d) for d in dims) else None
    shares = optim.shares_on_paper(model, config, ranks, head)
    if not shares:
        return 0.0
    fp32 = CARDS[card].fp32 * 1e12 * OPTIMIZER_SHARE
    rotations = CARDS[card].tf32 * 1e12 * OPTIMIZER_SHARE if getattr(config, "tf32", False) else fp32
    of_card = CARDS[card].memory / CARDS["h100"].memory
    step = max(
        share.rotation_flops / rotations + share.exact_flops / fp32 + share.decomposition_flops / (QR * of_card)
        for share in shares
    )
    seen, batch = trained_images(images, study, sweep=stage == "sweep")
    return step * seen / batch


@dataclass(frozen=True)
class WallTime:
    """A schedule: ``seconds`` from its begin to its end, when each node begins, and GPU seconds of work in all."""

    seconds: float
    begins: Mapping[str, float]
    busy: float
    workers: int

    @property
    def idle(self) -> float:
        """The share of all workers' time in which they have nothing to do."""
        return max(0.0, 1 - self.busy / (self.seconds * self.workers)) if self.seconds else 0.0  # sums round


def node_parts(images: StudyImages, nodes: Sequence[Node]) -> dict[str, int]:
    """Return the number of parts of every node whose work other workers may share (:mod:`dinoskip.io.parts`)."""
    parts = {}
    for node in nodes:
        settings = node.settings
        if not isinstance(settings, TaskSettings):
            continue
        if settings.record.part and (settings.record.parts_of_windows or not settings.windows):
            split = settings.record.scored_split(settings.section)
            scored = images.count(str(settings.context["dataset"]), split, settings.record.label)
            parts[node.id] = math.ceil(scored / settings.record.part)
    return parts


def greedy(
    nodes: Sequence[Node], seconds: Mapping[str, float], workers: int, width: Callable[[Node], int] = lambda _: 1,
    cached: Collection[str] = (), parts: Mapping[str, int] = MappingProxyType({}),
) -> WallTime:  # fmt: skip
    """Give every node that is ready to workers that are free, the longest path first, as a spread run does.

    ``width`` is how many workers a node takes at once, at most all; one that does not fit yet lets shorter ones pass.
    ``cached`` nodes take no time. Workers for whom there is no node make some of the ``parts`` of one that others are
    at: a helper begins after :data:`OTHER` seconds, which are no work, and no part after :data:`HELPING` seconds more.
    """
    return _Greedy([node for node in nodes if node.id not in cached], seconds, workers, width, parts).run()


@dataclass
class _Shared:
    """The parts of a node at work: how many nobody has begun, who makes one now, and helpers; ``seconds`` of each."""

    left: int
    seconds: float
    made_now: int = 0
    helpers: int = 0
    waits: bool = False  # the node's own worker has nothing left to begin


@dataclass(order=True)
class _Worker:
    """A worker that is at a node until ``time``: of a wide node all of its workers."""

    time: float
    place: int  # in the order of what was begun
    name: str = field(compare=False)
    until: float = field(compare=False, default=math.inf)  # when it begins no further part, of a helper
    in_part: bool = field(compare=False, default=False)


class _Greedy:
    """The state of :func:`greedy`: what is ready, who is at what, and when."""

    def __init__(
        self, nodes: Sequence[Node], seconds: Mapping[str, float], workers: int, width: Callable[[Node], int],
        parts: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.seconds, self.workers, self.parts = seconds, workers, parts
        self.paths, self.by_id = longest_paths(nodes, seconds), {node.id: node for node in nodes}
        self.width = {name: min(width(node), workers) for name, node in self.by_id.items()}
        self.places = {name: place for place, name in enumerate(self.by_id)}
        self.unmet = {name: self.by_id.keys() & set(node.needs.values()) for name, node in self.by_id.items()}
        self.readers: dict[str, list[str]] = {}
        for name, sources in self.unmet.items():
            for source in sources:
                self.readers.setdefault(source, []).append(name)
        self.ready = [self._urgent(name) for name, sources in self.unmet.items() if not sources]
        heapq.heapify(self.ready)
        self.begins: dict[str, float] = {}
        self.running: list[_Worker] = []
        self.shared: dict[str, _Shared] = {}
        self.now, self.free, self.busy, self.begun, self.ended = 0.0, workers, 0.0, 0, 0

    def run(self) -> WallTime:
        while self.ended < len(self.by_id):
            self._hand_out()
            self._lend()
            worker = heapq.heappop(self.running)
            self.now = worker.time
            if worker.name in self.shared:
                self._of_parts(worker, self.shared[worker.name])
            elif worker.until < math.inf:  # what it was to help with has ended
                self.free += 1
            else:
                self._end(worker.name)
        return WallTime(self.now, self.begins, self.busy, self.workers)

    def _urgent(self, name: str) -> tuple[float, int, str]:
        return -self.paths[name], self.places[name], name

    def _hand_out(self) -> None:
        too_wide = []
        while self.ready and self.free:
            *_, name = urgent = heapq.heappop(self.ready)
            if (wide := self.width[name]) > self.free:
                too_wide.append(urgent)
                continue
            spent, count = self.seconds[name], self.parts.get(name, 1)
            self.free -= wide
            self.busy += wide * spent
            self.begins[name] = self.now
            if count > 1 and spent > OTHER:
                self.shared[name] = _Shared(count, (spent - OTHER) / count)
                spent = OTHER
            self._at(name, spent)
        for urgent in too_wide:
            heapq.heappush(self.ready, urgent)

    def _at(self, name: str, spent: float, until: float = math.inf, *, in_part: bool = False) -> None:
        self.begun += 1
        heapq.heappush(self.running, _Worker(self.now + spent, self.begun, name, until, in_part))

    def _lend(self) -> None:
        """Let workers without a node help, as :class:`dinoskip.pipeline.scheduling.Schedule` does."""
        for name in sorted(self.shared, key=self._urgent):
            shared = self.shared[name]
            while self.free and shared.left > shared.helpers:
                self.free -= 1
                shared.helpers += 1
                self._at(name, OTHER, self.now + OTHER + HELPING)

    def _of_parts(self, worker: _Worker, shared: _Shared) -> None:
        """A worker of a divided node has made a part, or has come to its first one."""
        shared.made_now -= worker.in_part
        if shared.left and self.now <= worker.until:
            shared.left, shared.made_now = shared.left - 1, shared.made_now + 1
            self._at(worker.name, shared.seconds, worker.until, in_part=True)
            return
        if worker.until < math.inf:
            shared.helpers -= 1
            self.free += 1
        else:
            shared.waits = True
        if shared.waits and not shared.made_now:
            del self.shared[worker.name]
            self._end(worker.name)

    def _end(self, name: str) -> None:
        self.ended += 1
        self.free += self.width[name]
        for reader in self.readers.get(name, ()):
            self.unmet[reader].discard(name)
            if not self.unmet[reader]:
                heapq.heappush(self.ready, self._urgent(reader))
