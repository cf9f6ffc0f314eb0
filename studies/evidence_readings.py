# Frozen: rows docs/results/evidence/rows.csv.gz, commit 928ad55c, 2026-11-26.
"""Every reading of the third study: by how much each skipless network is above the one with skips, and what to say.

A reading fixes the measure, the images, the tensor, whether each position's mean is subtracted, and over which blocks a
network counts. All sentences are made from the readings, so that they change where the rows do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from benchmarks.pages import markdown_table
from studies.evidence_rows import LAST, SKIPLESS, Curve, Measure, Paired, Rows, curves, differences, label
from studies.evidence_rows import mean_of_late_blocks as _late

RULES: Mapping[str, Callable[[Curve], float]] = {
    "mean of blocks 5-12": _late,
    "own best block": lambda curve: max(curve.values()),
    "last block": lambda curve: curve[LAST],
}
FIXED, OWN_BEST = "mean of blocks 5-12", "own best block"
KEPT, REMOVED = "kept", "removed"
SEGMENTATION, DISCOVERY, NEIGHBOURS = "segmentation", "object discovery", "k-NN"
TITLES = {SEGMENTATION: "Segmentation", DISCOVERY: "Object discovery", NEIGHBOURS: "k-NN classification"}
METRICS = {SEGMENTATION: "mIoU", DISCOVERY: "CorLoc", NEIGHBOURS: "accuracy"}
IMAGES = {"scenes": "scenes, 64 px", "double": "scenes, 128 px", "imagenette": "Imagenette, 64 px"}
OTHER_IMAGES = "100 other scenes, 64 px"
TENSORS = {"key": "keys", "out": "block outputs", "mlp": "MLP branches"}
_LATE_BLOCKS = {
    ("key", KEPT): "CorLoc, as it is",
    ("key", REMOVED): "CorLoc, position mean removed",
    ("out", KEPT): "CorLoc, read at out",
}
Unsure = frozenset[tuple[str, str, str, str]]
"""Differences whose sign undefined cuts could change: network, images, tensor, rule."""
UNSURE_MARK = "†"
MEASURES = (
    *((SEGMENTATION, Measure("", "probe", "mIoU", *of)) for of in product(("scenes", "double"), ("out", "mlp"))),
    *((DISCOVERY, Measure("", "tokencut", "CorLoc", *of)) for of in product(("scenes", "double"), ("key", "out"))),
    (NEIGHBOURS, Measure("", "knn", "accuracy_k20", "imagenette", "out")),
)


@dataclass(frozen=True)
class Reading:
    """One reading: the lead of each skipless network over *skip*, in points.

    ``task`` is one of :data:`METRICS`, ``tensor`` of :data:`TENSORS`, ``rule`` of :data:`RULES`; ``position`` is
    :data:`KEPT` or :data:`REMOVED`.
    """

    task: str
    images: str
    tensor: str
    position: str
    rule: str
    leads: Mapping[str, Paired] = field(default_factory=dict)

    @property
    def is_the_rule(self) -> bool:
        """Whether it is one of the two readings that the rule fixed before the first run."""
        tensor = {DISCOVERY: "key", SEGMENTATION: "out"}.get(self.task)
        asked = (IMAGES["scenes"], tensor, KEPT)
        return (self.images, self.tensor, self.position) == asked and FIXED in self.rules

    @property
    def is_the_papers(self) -> bool:
        """Whether it has the paper's tensor and choice of blocks: keys, each run at its own best block."""
        asked = (DISCOVERY, "key", KEPT)
        return (self.task, self.tensor, self.position) == asked and OWN_BEST in self.rules

    def is_unsure(self, network: str, unsure: Unsure) -> bool:
        """Whether ``unsure`` names the difference of a network."""
        return any((network, self.images, self.tensor, rule) in unsure for rule in self.rules)

    @property
    def rules(self) -> list[str]:
        """The rules that give these numbers; often one."""
        return self.rule.split(" and ")


def readings(rows: Rows, late_blocks: Rows) -> list[Reading]:
    """Return every reading of the study's rows and, with positions removed, of those of the page on late blocks.

    Rules that give the same numbers are one reading: the best block may be the last one in all runs.
    """
    every = [
        Reading(task, IMAGES[measure.dataset], measure.facet, KEPT, rule, leads(curves(rows, measure), RULES[rule]))
        for task, measure in MEASURES
        for rule in RULES
    ]
    for (tensor, position), name in _LATE_BLOCKS.items():
        of = late_block_curves(late_blocks, name)
        every += [Reading(DISCOVERY, OTHER_IMAGES, tensor, position, rule, leads(of, RULES[rule])) for rule in RULES]
    distinct: dict[object, Reading] = {}
    for reading in every:
        numbers = tuple(tuple(sorted(lead.by_seed.items())) for lead in reading.leads.values())
        key = (reading.task, reading.images, reading.tensor, reading.position, numbers)
        same = distinct.get(key)
        distinct[key] = replace(same, rule=f"{same.rule} and {reading.rule}") if same else reading
    return list(distinct.values())


def leads(of: Mapping[str, Mapping[int, Curve]], rule: Callable[[Curve], float]) -> dict[str, Paired]:
    """Return the lead of each skipless network over *skip*, by the seeds that both have."""
    return {network: Paired(differences(of, network, "skip", rule)) for network in SKIPLESS}


def late_block_curves(rows: Rows, measure: str) -> dict[str, dict[int, dict[int, float]]]:
    """Return the curves of a measure of ``docs/results/late_blocks/rows.csv``, by network and seed."""
    every: dict[str, dict[int, dict[int, float]]] = {"skip": {}, **{network: {} for network in SKIPLESS}}
    for row in rows:
        network, _, seed = row["run"].partition("_s")
        if row["measure"] == measure and network in every:
            every[network][int(seed)] = {block: float(row[str(block)]) for block in range(1, LAST + 1)}
    return every


# --- sentences ---------------------------------------------------------------------------------------


def of_task(every: Iterable[Reading], task: str) -> list[Reading]:
    """Return the readings of a task."""
    return [reading for reading in every if reading.task == task]


def signs(every: Sequence[Reading], network: str) -> tuple[int, int, int]:
    """Return in how many readings a network leads, trails, and all."""
    of = [reading.leads[network].sign for reading in every]
    return of.count(1), of.count(-1), len(of)


def outcome(every: Sequence[Reading], network: str) -> str:
    """Return ``*mixing* leads in 14 and trails in 2 of 21``."""
    ahead, behind, count = signs(every, network)
    parts = [f"{verb} in {number}" for verb, number in (("leads", ahead), ("trails", behind)) if number]
    if count in (ahead, behind):
        return f"*{label(network)}* {'leads' if ahead else 'trails'} in all {count}"
    return f"*{label(network)}* {' and '.join(parts) or 'leads or trails in none'} of {count}"


def verdict(every: Sequence[Reading]) -> str:
    """Return ``yes`` or ``no`` if all readings of all networks agree, else how they part."""
    counts = [signs(every, network) for network in SKIPLESS]
    if all(ahead == count for ahead, _, count in counts):
        return "yes"
    if all(behind == count for _, behind, count in counts):
        return "no"
    if not any(ahead or behind for ahead, behind, _ in counts):
        return "undecided"
    return "it depends on the network and on how the features are read"


def span(every: Sequence[Reading]) -> str:
    """Return ``2.3 to 19.1``, the smallest and the largest difference of all readings and networks."""
    sizes = [abs(lead.mean) for reading in every for lead in reading.leads.values()]
    return f"{min(sizes):.1f} to {max(sizes):.1f}"


def sentence(every: Sequence[Reading], task: str) -> str:
    """Return the answer on a task in one sentence: a word, and the readings behind it."""
    of = of_task(every, task)
    word = verdict(of)
    if word in ("yes", "no"):
        verb = "leads" if word == "yes" else "trails"
        said = (
            f"in all {len(of)} readings each network without skips {verb} *skip*, by {span(of)} points of "
            f"{METRICS[task]}"
        )
    else:
        said = "; ".join(outcome(of, network) for network in SKIPLESS)
    return f"**{TITLES[task]}: {word}.** {said[:1].upper()}{said[1:]}."


def groups(every: Sequence[Reading]) -> dict[str, list[Reading]]:
    """Return the readings of object discovery by tensor and position, under words for them."""
    together: dict[str, list[Reading]] = {}
    for reading in of_task(every, DISCOVERY):
        how = TENSORS[reading.tensor] + (
            " after subtracting the per-position mean" if reading.position == REMOVED else ""
        )
        together.setdefault(how, []).append(reading)
    return together


def group_lines(every: Sequence[Reading]) -> list[str]:
    """Return a sentence for each way to read object discovery: in how many readings each network leads or trails."""
    return [
        f"Read from {how}: {'; '.join(outcome(of, network) for network in SKIPLESS)}."
        for how, of in groups(every).items()
    ]


def named(leads_of: Mapping[str, Paired]) -> str:
    """Return ``+52.1 ± 10.6 (*mixing*), ...``."""
    return ", ".join(f"{lead.text} (*{label(network)}*)" for network, lead in leads_of.items())


def values(reading: Reading, unsure: Unsure = frozenset(), names: bool = True) -> str:
    """Return ``+52.1 ± 10.6 (*mixing*), ...``, with a mark behind those that are unsure; or without the names."""
    return ", ".join(
        f"{lead.text}{UNSURE_MARK if reading.is_unsure(network, unsure) else ''}"
        f"{f' (*{label(network)}*)' if names else ''}"
        for network, lead in reading.leads.items()
    )


# --- tables ------------------------------------------------------------------------------------------


def table(every: Sequence[Reading], task: str, unsure: Unsure = frozenset()) -> list[str]:
    """Return a table of all readings of a task: bold where the interval leaves out 0, with a mark where unsure."""
    of = of_task(every, task)
    with_position = len({reading.position for reading in of}) > 1
    lines = [
        [
            reading.images, TENSORS[reading.tensor], *([reading.position] if with_position else []),
            reading.rule + (" (the rule)" if reading.is_the_rule else ""),
            *(_cell(reading, network, unsure) for network in SKIPLESS),
            "/".join(str(reading.leads[network].n) for network in SKIPLESS),
        ]
        for reading in of
    ]  # fmt: skip
    columns = ["images", "tensor", *(["position"] if with_position else []), "blocks"]
    return markdown_table([*columns, *(f"{label(network)} − skip" for network in SKIPLESS), "seeds"], lines)


def _cell(reading: Reading, network: str, unsure: Unsure) -> str:
    lead, mark = reading.leads[network], UNSURE_MARK if reading.is_unsure(network, unsure) else ""
    return f"**{lead.text}**{mark}" if lead.sign else f"{lead.text}{mark}"
