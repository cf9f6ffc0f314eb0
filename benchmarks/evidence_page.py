"""The page of the third study, from its rows alone, with verdicts where the rule of its configuration allows them.

A measure of a run is its mean over blocks 5 to 12. Networks are compared with skip by the differences of seeds.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from benchmarks.pages import markdown_table
from dinoskip.files import sha256_file, write_text
from dinoskip.statistics import holm

NETWORKS = {
    "skip": "with skips",
    "mixing": "skipless, calibrated, heads that mix",
    "annealed": "mixing, the skips' weight from 1 to 0 over 60 % of training",
    "paper": "skipless, the paper's start, beta scaled to the width",
}
SEEDS = tuple(range(5))
BLOCKS = range(5, 13)
CONFIGS = tuple(Path(f"configs/results/evidence{part}.yaml") for part in ("", "_double", "_rates"))
LEVEL = 0.05
XEON = "fcfdede"  # the version of the runs that were made on the first machine
FLOORS = ("colours", "random patch", "majority class", "centre box")
Rows = Sequence[Mapping[str, str]]
_SECOND = """\
The second study trained networks of width 128 at 48 pixels for 30 epochs of patch contrast on 3,200 photographs,
with three seeds of *skip* and *mixing*. Its page chose one block for each network and called all six measures
undecided, because the choice of blocks adds noise. Averaged over blocks, the same rows show clear differences. They
are not corrected, and were seen before this rule was written, which is why there is a third study:
"""
_RULE = """\
Of 4,000 simulated studies in which no network differs from another, the rule gives a wrong verdict in 4 % if seeds
deviate normally or with heavy tails, in 7 % if their deviations are skewed, and in 5 % if one seed in five fails
(`python -m benchmarks.evidence_rule`).
"""
_TAUGHT = """\
Object discovery by keys is better **without** skips: *skip* falls to 3-5 % in late blocks of every seed, below the
centre box (29.8), and *mixing* stays above 38 from block 5 on. Correspondence (PCK) is also better without.
Segmentation, k-NN and video are better **with** skips. The scenes had one cut-out per class, the same in training
and validation. Without a network, colours reach a mIoU of 60 on them and a random patch a CorLoc of 53.5
([baselines](../protocols.md#without-a-network)), and lower values say nothing about a network. The runs are gone;
`dense_seeds/rows.csv` has the printed values by block, with one decimal. [Another page](late_blocks.md) examines
the fall in late blocks.

The second study also had the paper's and the default initialisation with two seeds, and one seed with AdamW and one
with DINO's loss (`dense/rows.csv`, `dense_adamw/rows.csv`, `dense_dino/rows.csv`). No network without skips was better
than the network with skips on any measure, and with one seed and three learning rates nothing else was decided. Its
*paper* had β 1 at width 128, where late tokens are alike before training, so it did not test the paper's
initialisation. Its pages are withdrawn.
"""


@dataclass(frozen=True)
class Measure:
    """What is averaged over blocks: the task, metric, data set and read point of its rows."""

    name: str
    task: str
    metric: str
    dataset: str
    facet: str

    def is_of(self, row: Mapping[str, str]) -> bool:
        """Whether a row is of this measure, whatever its block and read point."""
        return (row["task"], row["metric"], row["dataset"]) == (self.task, self.metric, self.dataset)


PRIMARY = (
    Measure("mIoU above colours", "probe", "mIoU", "scenes", "out"),
    Measure("CorLoc", "tokencut", "CorLoc", "scenes", "key"),
)
SECONDARY = (
    Measure("mIoU, read at mlp", "probe", "mIoU", "scenes", "mlp"),
    Measure("CorLoc, read at out", "tokencut", "CorLoc", "scenes", "out"),
    Measure("mIoU, 128 px", "probe", "mIoU", "double", "out"),
    Measure("mIoU, 128 px, read at mlp", "probe", "mIoU", "double", "mlp"),
    Measure("CorLoc, 128 px", "tokencut", "CorLoc", "double", "key"),
    Measure("CorLoc, 128 px, read at out", "tokencut", "CorLoc", "double", "out"),
)


def name_of(model: str) -> tuple[str, int]:
    """Network and seed of a run's name: ``("skip", 0)`` of ``skip-soap-s0``."""
    network, _, seed = model.split("-")
    return network, int(seed[1:])


def runs_of(rows: Rows) -> dict[str, list[int]]:
    """The seeds that each network has."""
    seeds_of: dict[str, set[int]] = {network: set() for network in NETWORKS}
    for model in {row["model"] for row in rows if not row["model"].startswith("baseline")}:
        network, seed = name_of(model)
        seeds_of[network].add(seed)
    return {network: sorted(seeds) for network, seeds in seeds_of.items()}


def by_block(rows: Rows, measure: Measure, model: str) -> dict[int, float]:
    """Values of a run's single blocks."""
    of_model = [row for row in rows if row["model"] == model and measure.is_of(row) and row["facet"] == measure.facet]
    return {int(row["block"]): float(row["value"]) for row in of_model if row["block"].isdigit()}


def floor(rows: Rows, measure: Measure, name: str) -> float | None:
    """A baseline's value; None where it was not measured."""
    values = [float(row["value"]) for row in rows if row["model"] == f"baseline: {name}" and measure.is_of(row)]
    return statistics.mean(values) if values else None


def second_study(rows: Rows) -> list[str]:
    """Mixing against skip by the rows of the second study: mean over all blocks, and over 5 to 12."""
    measures = [
        Measure("mIoU, scenes", "probe", "mIoU", "scenes", "out"),
        Measure("CorLoc, scenes", "tokencut", "CorLoc", "scenes", "key"),
        Measure("mIoU, VOC2012", "probe", "mIoU", "voc2012", "out"),
        Measure("k-NN, Imagenette", "knn", "accuracy_k20", "imagenette", "out"),
        Measure("J&F, videos", "video", "J&F", "videos", "out"),
        Measure("PCK, pairs", "correspondence", "PCK@0.1 per image", "pairs", "key"),
    ]
    trained = [row for row in rows if row["epoch"] == "30"]
    lines = []
    for measure in measures:
        cells = []
        for blocks in (range(1, 13), BLOCKS):
            differences = {}
            for seed in range(3):
                first, second = (by_block(trained, measure, f"{name}-soap-s{seed}") for name in ("mixing", "skip"))
                differences[seed] = statistics.mean(first[block] - second[block] for block in blocks)
            pair = Comparison("mixing", measure, differences)
            cells.append(f"{pair.mean:+.1f} [{pair.mean - pair.half:+.1f}, {pair.mean + pair.half:+.1f}]")
        lines.append([measure.name, *cells])
    return markdown_table(["mixing − skip, 3 seeds", "blocks 1-12", "blocks 5-12"], lines)


def by_seed(rows: Rows, measure: Measure, network: str) -> dict[int, float]:
    """Mean over blocks 5 to 12 of every run of a network that has the measure; of the first one above colours."""
    above = (floor(rows, measure, "colours") or 0.0) if measure is PRIMARY[0] else 0.0
    means = {}
    for seed in runs_of(rows)[network]:
        values = by_block(rows, measure, f"{network}-soap-s{seed}")
        if all(block in values for block in BLOCKS):
            means[seed] = statistics.mean(values[block] for block in BLOCKS) - above
    return means


@dataclass(frozen=True)
class Comparison:
    """A network against skip: differences by seed, their mean, 95 % interval, p (nan of one seed)."""

    network: str
    measure: Measure
    differences: Mapping[int, float]

    @property
    def n(self) -> int:
        """Seeds that both have."""
        return len(self.differences)

    @property
    def mean(self) -> float:
        """Mean difference over seeds; nan without one."""
        return statistics.mean(self.differences.values()) if self.n else float("nan")

    @property
    def half(self) -> float:
        """Half of the 95 % interval of the mean, by Student's t of n - 1 degrees."""
        if self.n < 2:
            return float("nan")
        return float(student.ppf(0.975, self.n - 1)) * statistics.stdev(self.differences.values()) / self.n**0.5

    @property
    def p(self) -> float:
        """Two-sided, of no difference, paired by seed."""
        if self.n < 2:
            return float("nan")
        error = statistics.stdev(self.differences.values()) / self.n**0.5
        return float(2 * student.sf(abs(self.mean) / error, self.n - 1)) if error else 0.0

    @property
    def direction(self) -> str:
        """Better or worse than *skip*."""
        return "better" if self.mean > 0 else "worse"

    def verdict(self, corrected: float | None) -> str:
        """What may be said; ``corrected`` is Holm's p, None while the study is not complete."""
        if corrected is None:
            return f"none yet: {self.n} of {len(SEEDS)} seeds"
        if corrected < LEVEL:
            return f"{self.direction}, p = {corrected:.3g}"
        most = max(abs(self.mean - self.half), abs(self.mean + self.half))
        return f"undecided, p = {corrected:.3g}: smaller than {most:.1f}"


def comparisons(rows: Rows, measures: Sequence[Measure]) -> list[Comparison]:
    """Every network but skip, on every measure, by the seeds that both have."""
    pairs = []
    for measure in measures:
        skip = by_seed(rows, measure, "skip")
        for network in list(NETWORKS)[1:]:
            runs = by_seed(rows, measure, network)
            pairs.append(Comparison(network, measure, {seed: runs[seed] - skip[seed] for seed in runs if seed in skip}))
    return pairs


def corrected_p(pairs: Sequence[Comparison]) -> Sequence[float | None]:
    """Holm's p of each primary comparison: None before all of them have all seeds, for Holm counts them together."""
    if any(pair.n < len(SEEDS) for pair in pairs):
        return [None] * len(pairs)
    return holm([pair.p for pair in pairs])


def verdicts(pairs: Sequence[Comparison]) -> list[str]:
    """A verdict for each primary comparison, by :func:`corrected_p`."""
    return [pair.verdict(p) for pair, p in zip(pairs, corrected_p(pairs), strict=True)]


def _sentence(pairs: Sequence[Comparison], p: Sequence[float | None]) -> str:
    """The verdicts on one measure: "mIoU above colours: mixing is worse than skip by 12.4, ..."."""
    parts = []
    for pair, corrected in zip(pairs, p, strict=True):
        if corrected is not None and corrected < LEVEL:
            parts.append(f"*{pair.network}* is {pair.direction} than *skip* by {abs(pair.mean):.1f}")
        else:
            parts.append(f"*{pair.network}* cannot be told apart from *skip*")
    return f"{pairs[0].measure.name}: {'; '.join(parts)}."


def answer(rows: Rows, pairs: Sequence[Comparison]) -> list[str]:
    """What the rule says of a complete study, and which networks are better than features without a network."""
    p = corrected_p(pairs)
    count = len(NETWORKS) - 1
    lines = [
        f"- {_sentence(pairs[at : at + count], p[at : at + count])} {_against_pixels(rows, measure)}"
        for at, measure in zip(range(0, len(pairs), count), PRIMARY, strict=True)
    ]
    return ["**Answer, by the rule fixed before the first run:**", "", *lines, ""]


def _against_pixels(rows: Rows, measure: Measure) -> str:
    """Networks whose mean over seeds is above the best row without a network."""
    floors = {name: floor(rows, measure, name) for name in FLOORS}
    name, height = max(((name, value) for name, value in floors.items() if value is not None), key=lambda pair: pair[1])
    if measure is PRIMARY[0]:  # differences to colours already
        height -= floor(rows, measure, "colours") or 0.0
    above = [f"*{each}*" for each in NETWORKS if statistics.mean(by_seed(rows, measure, each).values()) > height]
    return f"Above the best baseline without a network ({name}): {', '.join(above) or 'none'}."


def _machines(rows: Rows) -> list[str]:
    """What the runs of the first machine say alone: *skip* was trained on it with all seeds, the others with some."""
    first, rest = (
        [row for row in rows if row["study"].startswith(f"0.2.0 {XEON}") is of_xeon] for of_xeon in (True, False)
    )
    if not first or not rest:
        return []
    alone = ", ".join(
        f"{_number(pair.mean, '+')} ({pair.network} − skip, {pair.measure.name}, {pair.n})"
        for pair in comparisons(first, PRIMARY)
        if pair.n
    )
    colours = "; ".join(
        f"{measure.metric} {_number(floor(first, measure, 'colours'))} and {_number(floor(rest, measure, 'colours'))}"
        for measure in PRIMARY
    )
    return [
        f"Runs of version {XEON} (*skip* with all seeds, the others with some) were made on an Intel Xeon, the rest on "
        f"an AMD EPYC. Colours alone have {colours} on the two. The Xeon's runs alone give the same picture; their "
        f"mean differences, with the number of seeds: {alone}.",
        "",
    ]


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None or np.isnan(value) else f"{value:{sign}.1f}"


def _levels(rows: Rows, measures: Sequence[Measure]) -> list[str]:
    lines = []
    for network in NETWORKS:
        cells = []
        for measure in measures:
            values = list(by_seed(rows, measure, network).values())
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{_number(statistics.mean(values))}{spread} ({len(values)})" if values else "")
        lines.append([network, *cells])
    lines += [[f"baseline: {name}", *(_number(floor(rows, measure, name)) for measure in measures)] for name in FLOORS]
    return markdown_table(["mean over blocks 5-12", *(measure.name for measure in measures)], lines)


def _differences(pairs: Sequence[Comparison], said: Sequence[str]) -> list[str]:
    lines = []
    for pair, words in zip(pairs, said, strict=True):
        interval = f" [{pair.mean - pair.half:+.1f}, {pair.mean + pair.half:+.1f}]" if pair.n > 1 else ""
        lines.append(
            [f"{pair.network} − skip", pair.measure.name, str(pair.n), f"{_number(pair.mean, '+')}{interval}", words]
        )
    return markdown_table(["networks", "measure", "seeds", "difference", "verdict"], lines)


def _curves(rows: Rows) -> list[str]:
    lines = []
    for measure in PRIMARY:
        for network, seeds in runs_of(rows).items():
            every = [by_block(rows, measure, f"{network}-soap-s{seed}") for seed in seeds]
            if every and all(every):
                cells = [_number(statistics.mean(curve[block] for curve in every)) for block in range(1, 13)]
                lines.append([f"{network}, {measure.metric}", *cells])
    return markdown_table(["block", *map(str, range(1, 13))], lines) if lines else []


def _rates(rates: Rows) -> list[str]:
    lines = []
    for network in NETWORKS:
        by_rate: dict[float, list[float]] = {}
        for row in rates:
            if row["network"] == network:
                by_rate.setdefault(float(row["lr"]), []).append(float(row["miou"]))
        for lr, values in sorted(by_rate.items()):
            lines.append([network, f"{lr:g}", _number(statistics.mean(values)), str(len(values))])
    return markdown_table(["network", "rate", "mIoU, blocks 3-12", "seeds"], lines)


def _weights(rows: Rows) -> list[str]:
    about = {
        row["model"]: [row["weights"], f"{float(row['lr']):g}", f"{float(row['seconds']) / 60:.0f}", row["study"]]
        for row in rows
        if not row["model"].startswith("baseline")
    }
    return markdown_table(["run", "weights", "rate", "minutes", "version"], [[k, *v] for k, v in sorted(about.items())])


def identity(rows: Rows) -> str:
    """Sha256 of the rows, whatever their order."""
    return hashlib.sha256("\n".join(sorted(json.dumps(dict(row), sort_keys=True) for row in rows)).encode()).hexdigest()


def page(rows: Rows, rates: Rows, second: Rows) -> str:
    """The page; ``second`` are the rows of the second study."""
    runs, primary = runs_of(rows), comparisons(rows, PRIMARY)
    count = sum(map(len, runs.values()))
    said = verdicts(primary)
    hours = {row["model"]: float(row["seconds"]) / 3600 for row in rows if not row["model"].startswith("baseline")}
    machines = sorted({row["machine"] for row in rows})
    whole_study = count == len(NETWORKS) * len(SEEDS)
    missing = "" if whole_study else " **No verdict is given, because the rule needs all runs.**"
    whole = ", ".join(f"{network} {len(seeds)}" for network, seeds in runs.items())
    return "\n".join(
        [
            "# Dense features without skips: third study",
            "",
            *(answer(rows, primary) if whole_study else []),
            f"{count} of {len(NETWORKS) * len(SEEDS)} runs are finished ({whole}).{missing} "
            "The rule, sizes and settings were fixed before the first run (`configs/results/evidence.yaml`). "
            "`python -m benchmarks.evidence page` writes this page from its rows (`docs/results/evidence/`); "
            "`python -m benchmarks.evidence run --data IMAGENETTE` makes the missing runs.",
            "",
            *(f"- {network}: {what}" for network, what in NETWORKS.items()),
            "",
            "## Primary measures",
            "",
            *_differences(primary, said),
            *_levels(rows, PRIMARY),
            "Values are means over blocks 5 to 12 at 64 pixels, the size of training; ± is the deviation over "
            "seeds, with their number in brackets. The mIoU of networks is given above that of colours; "
            "the row of colours is as measured. Colours and random patch are features of pixels without a network "
            "([protocols](../protocols.md#without-a-network)).",
            "",
            _RULE,
            *_machines(rows),
            "## Secondary, uncorrected",
            "",
            *_differences(comparisons(rows, SECONDARY), [""] * 3 * len(SECONDARY)),
            *_levels(rows, SECONDARY),
            "## What the second study's rows say",
            "",
            _SECOND,
            *second_study(second),
            _TAUGHT,
            "## By block",
            "",
            *_curves(rows),
            "## Learning rates",
            "",
            *_rates(rates),
            "## Runs",
            "",
            *_weights(rows),
            f"{sum(hours.values()):.1f} core-hours of runs on {'; '.join(machines) or 'no machine yet'}. "
            f"sha256 of the rows: `{identity(rows)}`.",
            "",
            "The study's configurations, unchanged since before the first run (sha256):",
            "",
            *(f"- `{config}`: `{sha256_file(config)}`" for config in CONFIGS),
        ]
    )


def write_page(rows: Rows, rates: Rows, second: Rows, path: Path) -> None:
    """Write the page."""
    write_text(path, page(rows, rates, second) + "\n")
