# Frozen: rows docs/results/evidence/rows.csv.gz, commit 928ad55c, 2026-11-26.
"""The page of the third study, from its rows alone: the answer, every reading, the rule's verdicts, their limits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.pages import folded, markdown_table
from dinoskip.io.files import sha256_file, write_text
from dinoskip.results.statistics import holm
from studies.evidence_answer import (
    FLOORS,
    HEADS,
    ISOLATED,
    PRIMARY,
    Sources,
    Unsureness,
    about,
    baselines,
    by_tensor,
    chosen_rates,
    dial_curves,
    dial_leads,
    leading,
    legend,
    mean_rates,
    outputs_at_the_same_rate,
    readme_paragraph,
    short_answer,
    undefined_cuts,
    unsure_signs,
)
from studies.evidence_readings import (
    DISCOVERY,
    FIXED,
    IMAGES,
    MEASURES,
    NEIGHBOURS,
    SEGMENTATION,
    SKIPLESS,
    TENSORS,
    UNSURE_MARK,
    Reading,
    readings,
    sentence,
    table,
)
from studies.evidence_rows import (
    BLOCKS,
    NETWORKS,
    SEEDS,
    Measure,
    Paired,
    Rows,
    curves,
    differences,
    floor,
    identity,
    label,
    mean_of_late_blocks,
    runs_of,
)

CONFIGS = tuple(Path(f"configs/results/evidence{part}.yaml") for part in ("", "_double", "_rates"))
LEVEL = 0.05
DEGENERATE = 0.05  # below this share of images, a curve moves by less than its interval
XEON = "fcfdede"  # the version of the runs that were made on the first machine
README_MARKS = ("<!-- answer of the third study: python -m studies.evidence page -->", "<!-- end of the answer -->")
THIRD_PARTY = "https://github.com/gacikgoz/cutting-the-skip-reproduction"

SECONDARY = (
    Measure("mIoU, MLP branches", "probe", "mIoU", "scenes", "mlp"),
    Measure("CorLoc, block outputs", "tokencut", "CorLoc", "scenes", "out"),
    Measure("mIoU, 128 px", "probe", "mIoU", "double", "out"),
    Measure("mIoU, 128 px, MLP branches", "probe", "mIoU", "double", "mlp"),
    Measure("CorLoc, 128 px", "tokencut", "CorLoc", "double", "key"),
    Measure("CorLoc, 128 px, block outputs", "tokencut", "CorLoc", "double", "out"),
    Measure("k-NN, Imagenette", "knn", "accuracy_k20", "imagenette", "out"),
)


# --- the rule that was fixed before the first run ----------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A network against skip on a primary measure, paired by seed."""

    network: str
    measure: Measure
    lead: Paired

    @property
    def direction(self) -> str:
        """Better or worse than *skip*."""
        return "better" if self.lead.mean > 0 else "worse"

    def verdict(self, corrected: float | None) -> str:
        """Return the verdict in words; ``corrected`` is Holm's p, None while the study is not complete."""
        if corrected is None:
            return f"none yet: {self.lead.n} of {len(SEEDS)} seeds"
        if corrected < LEVEL:
            return f"{self.direction}, p = {corrected:.3g}"
        most = max(abs(self.lead.mean - self.lead.half), abs(self.lead.mean + self.lead.half))
        return f"undecided, p = {corrected:.3g}: a difference of up to {most:.1f} either way is not excluded"


def by_seed(rows: Rows, measure: Measure, network: str) -> dict[int, float]:
    """Return the mean over blocks 5 to 12 of every run that has them; of the first measure above that of colours."""
    above = (floor(rows, measure, "colours") or 0.0) if measure is PRIMARY[0] else 0.0
    of = curves(rows, measure)[network]
    return {seed: mean_of_late_blocks(of[seed]) - above for seed in sorted(of) if set(BLOCKS) <= set(of[seed])}


def comparisons(rows: Rows, measures: Sequence[Measure]) -> list[Comparison]:
    """Return every network but skip, on every measure, by the seeds that both have."""
    pairs = []
    for measure in measures:
        skip = by_seed(rows, measure, "skip")
        for network in SKIPLESS:
            runs = by_seed(rows, measure, network)
            lead = Paired({seed: runs[seed] - skip[seed] for seed in runs if seed in skip})
            pairs.append(Comparison(network, measure, lead))
    return pairs


def corrected_p(pairs: Sequence[Comparison]) -> Sequence[float | None]:
    """Return Holm's p of each primary comparison; None before all have all seeds, for Holm counts them together."""
    if any(pair.lead.n < len(SEEDS) for pair in pairs):
        return [None] * len(pairs)
    return holm([pair.lead.p for pair in pairs])


def verdicts(pairs: Sequence[Comparison]) -> list[str]:
    """Return a verdict for each primary comparison, by :func:`corrected_p`."""
    return [pair.verdict(p) for pair, p in zip(pairs, corrected_p(pairs), strict=True)]


def _simulated(rule: Rows) -> str:
    """Return how often the rule finds a difference where there is none (``rule.csv``)."""
    shares = ", ".join(f"{float(row['wrong']):.1f} % ({row['deviations']})" for row in rule)
    return (
        f"Of {int(rule[0]['studies']):,} simulated studies in which no network differs from another, the rule gives a "
        f"wrong verdict in {shares}, by the distribution of the seeds (`python -m studies.evidence_rule`)."
        if rule
        else ""
    )


# --- what was added afterwards -----------------------------------------------------------------------


def against_baselines(rows: Rows) -> list[str]:
    """Return each network's lead over the best baseline without a network, by Student's t over seeds."""
    lines = []
    for measure in PRIMARY:
        if (found := baselines(rows, measure)) is None:
            continue
        best, height, leads = found
        for network, lead in leads.items():
            p = "" if np.isnan(lead.p) else f"{lead.p:.2g}"
            lines.append([f"{label(network)} − {best} ({height:.1f})", measure.metric, str(lead.n), lead.text, p])
    return markdown_table(["network − best baseline", "measure", "seeds", "difference", "p"], lines)


def _other_study(dial: Rows) -> list[str]:
    """Return what our study from skips to none says by the same readings: a sentence and a table."""
    every, of = dial_leads(dial), dial_curves(dial)
    if not every:
        return []
    late = mean_of_late_blocks
    skip = statistics.mean(late(curve) for curve in of["skip"].values())
    early = statistics.mean(statistics.mean(curve[block] for block in range(1, 5)) for curve in of["skip"].values())
    falls = "falls" if skip < early else "does not fall"
    seeds = max(lead.n for lead in every[FIXED].values())
    said = (
        f"**Another study of ours, by the same reading.** In [the study from skips to none](dial.md) (48 px, 407 steps "
        f"on scenes, {seeds} seeds, learning rates not searched) the CorLoc of keys of *skip* {falls} from blocks 1-4 "
        f"({early:.1f}) to blocks 5-12 ({skip:.1f}), and there {leading(every[FIXED])} over it. *annealed* is called "
        f"*mixing annealed* there, and *paper annealed* is *{label('paper_annealed')}* here."
    )
    cells = [[rule, *(f"{lead.text}, p {lead.p:.2g}" for lead in by.values())] for rule, by in every.items()]
    columns = ["keys, scenes, 48 px", *(f"{label(name)} − skip" for name in every[FIXED])]
    return [said, "", *markdown_table(columns, cells)]


def _degenerate(rows: Rows, unsure: Unsureness) -> list[str]:
    """Return what undefined cuts do to these rows, and a table of the blocks that have them."""
    cells = []
    cut = [measure for task, measure in MEASURES if task == DISCOVERY]
    for measure, network in product(cut, NETWORKS):
        by = curves(rows, measure, "degenerate")[network].values()
        shares = {block: [curve[block] for curve in by if block in curve] for block in range(1, 13)}
        many = [str(block) for block, of in shares.items() if of and statistics.mean(of) >= DEGENERATE]
        where = [label(network), IMAGES[measure.dataset], TENSORS[measure.facet]]
        cells += [[*where, " ".join(many)]] if many else []
    text = (
        "**Undefined cuts.** Where all patch affinities of an image are above τ, its graph joins every patch to every "
        "other, and the second eigenvector is not unique. In these rows such a cut still has the box of whichever "
        "vector the processor's library returned, which is why *colours* has another CorLoc on each of the two "
        "machines; from this version on it has no box and counts as a miss. If all these boxes of one of two networks "
        f"were hits, and were misses now, the sign of {len(unsure.turned)} of {unsure.checked} differences could "
        f"change: those marked {UNSURE_MARK} [above](#object-discovery-corloc). The rows on other scenes "
        f"({unsure.unrecorded} differences) have no record of such cuts."
    )
    columns = ["network", "images", "tensor", f"blocks with such cuts in {DEGENERATE:.0%} of images or more"]
    return [text, "", *folded("Blocks with undefined cuts", markdown_table(columns, cells))] if cells else []


# --- limits ------------------------------------------------------------------------------------------


def _chosen_rates(rates: Rows) -> str:
    """Return how the learning rates were chosen, and which."""
    means, best = mean_rates(rates), chosen_rates(rates)
    if not {"skip", "mixing"} <= set(best):
        return ""
    tops = [means[network][lr] for network, lr in best.items()]
    chosen = ", ".join(f"{label(network)} {lr:g}" for network, lr in best.items())
    return (
        f"Learning rates were chosen after 100 steps, by mIoU alone, where the best values are {min(tops):.1f} to "
        f"{max(tops):.1f}: {chosen}. That of *skip* is {best['skip'] / best['mixing']:.0f} times that of *mixing*, so "
        "networks may differ by how far they are trained ([late blocks](late_blocks.md#skips-or-learning-rate))."
    )


def _machines(rows: Rows) -> list[str]:
    """Return what the first machine's runs say alone: *skip* was trained on it with all seeds, others with some."""
    first, rest = (
        [row for row in rows if row["study"].startswith(f"0.2.0 {XEON}") is of_xeon] for of_xeon in (True, False)
    )
    if not first or not rest:
        return []
    alone = ", ".join(
        f"{pair.lead.mean:+.1f} ({label(pair.network)} − skip, {pair.measure.name}, {pair.lead.n})"
        for pair in comparisons(first, PRIMARY)
        if pair.lead.n
    )
    colours = "; ".join(
        f"{measure.metric} {_number(floor(first, measure, 'colours'))} and {_number(floor(rest, measure, 'colours'))}"
        for measure in PRIMARY
    )
    return [
        f"Runs of version {XEON} (*skip* with all seeds, the others with some) were made on an Intel Xeon, the rest on "
        f"an AMD EPYC. Colours alone have {colours} on the two. The mean differences of the Xeon's runs alone, with "
        f"the number of seeds: {alone}.",
        "",
    ]


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None or np.isnan(value) else f"{value:{sign}.1f}"


# --- tables ------------------------------------------------------------------------------------------


def _levels(rows: Rows, measures: Sequence[Measure]) -> list[str]:
    lines = []
    for network in NETWORKS:
        cells = []
        for measure in measures:
            values = list(by_seed(rows, measure, network).values())
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{_number(statistics.mean(values))}{spread} ({len(values)})" if values else "")
        lines.append([label(network), *cells])
    lines += [[f"baseline: {name}", *(_number(floor(rows, measure, name)) for measure in measures)] for name in FLOORS]
    return markdown_table(["mean over blocks 5-12", *(measure.name for measure in measures)], lines)


def _primary(pairs: Sequence[Comparison]) -> list[str]:
    lines = [
        [f"{label(pair.network)} − skip", pair.measure.name, str(pair.lead.n), pair.lead.text, words]
        for pair, words in zip(pairs, verdicts(pairs), strict=True)
    ]
    return markdown_table(["networks", "measure", "seeds", "difference", "verdict"], lines)


def _curves(rows: Rows) -> list[str]:
    lines = []
    for measure in (*PRIMARY, SECONDARY[1], SECONDARY[-1]):
        for network, by in curves(rows, measure).items():
            if by and all(len(curve) == 12 for curve in by.values()):
                cells = [_number(statistics.mean(curve[block] for curve in by.values())) for block in range(1, 13)]
                name = {"accuracy_k20": "k-NN"}.get(measure.metric, f"{measure.metric} of {TENSORS[measure.facet]}")
                lines.append([f"{label(network)}, {name}", *cells])
    return markdown_table(["block", *map(str, range(1, 13))], lines) if lines else []


def _rates(rates: Rows) -> list[str]:
    lines = [
        [
            label(network),
            f"{lr:g}",
            _number(mean),
            str(sum(row["network"] == network and float(row["lr"]) == lr for row in rates)),
        ]
        for network, by in mean_rates(rates).items()
        for lr, mean in by.items()
    ]
    return markdown_table(["network", "rate", "mIoU, blocks 3-12", "seeds"], lines)


def _weights(rows: Rows) -> list[str]:
    about = {
        row["model"]: [row["weights"], f"{float(row['lr']):g}", f"{float(row['seconds']) / 60:.0f}", row["study"]]
        for row in rows
        if not row["model"].startswith("baseline")
    }
    return markdown_table(["run", "weights", "rate", "minutes", "version"], [[k, *v] for k, v in sorted(about.items())])


def second_study(rows: Rows) -> list[str]:
    """Return a table of mixing against skip by the rows of the second study: mean over all blocks, and over 5 to 12."""
    measures = [
        Measure("mIoU, scenes", "probe", "mIoU", "scenes", "out"),
        Measure("CorLoc, scenes", "tokencut", "CorLoc", "scenes", "key"),
        Measure("mIoU, VOC2012", "probe", "mIoU", "voc2012", "out"),
        Measure("k-NN, Imagenette", "knn", "accuracy_k20", "imagenette", "out"),
        Measure("J&F, videos", "video", "J&F", "videos", "out"),
        Measure("PCK, pairs", "correspondence", "PCK@0.1 per image", "pairs", "key"),
    ]
    trained = [row for row in rows if row["epoch"] == "30" and row["model"].split("-")[0] in ("skip", "mixing")]
    lines = []
    for measure in measures:
        of = curves(trained, measure)
        pairs = (
            Paired(differences(of, "mixing", "skip", count))
            for count in (lambda curve: statistics.mean(curve.values()), mean_of_late_blocks)
        )
        lines.append([measure.name, *(pair.text for pair in pairs)])
    return markdown_table(["mixing − skip, 3 seeds", "blocks 1-12", "blocks 5-12"], lines)


# --- the page ----------------------------------------------------------------------------------------


def page(sources: Sources) -> str:
    """Return the page."""
    rows, runs = sources.rows, runs_of(sources.rows)
    count, whole = sum(map(len, runs.values())), len(NETWORKS) * len(SEEDS)
    every = readings(rows, sources.late_blocks) if count == whole else []
    unsure = unsure_signs(rows, every)
    finished = ", ".join(f"{label(network)} {len(seeds)}" for network, seeds in runs.items())
    missing = "" if count == whole else " **No verdict is given, because the rule needs all runs.**"
    return "\n".join(
        [
            "# Dense features without skips: third study",
            "",
            *(_answer(every, sources, unsure) if every else []),
            f"{count} of {whole} runs are finished ({finished}).{missing} `python -m studies.evidence page` writes "
            "this page, and the paragraph in README, from rows (`docs/results/evidence/`, `late_blocks/`, `dial/`); "
            "`python -m studies.evidence run --data IMAGENETTE` makes the missing runs.",
            "",
            *(f"- {_in_files(network)}: {what}" for network, what in NETWORKS.items()),
            "",
            *(_every_reading(every, unsure) if every else []),
            *_rule(sources),
            *_afterwards(sources, unsure),
            *_details(sources),
        ]
    )


def _in_files(network: str) -> str:
    """Return what texts call a network, with its name in files where that is another."""
    name = label(network)
    return name if name == network else f"{name} (`{network}` in files)"


def _answer(every: Sequence[Reading], sources: Sources, unsure: Unsureness) -> list[str]:
    """Return the first screen: what was compared, the short answer, and what it leaves open."""
    texts = [
        about("this study"),
        *short_answer(every, sources),
        f"{outputs_at_the_same_rate(sources)} {ISOLATED} {HEADS}. Why late keys of *skip* are low: [late "
        "blocks](late_blocks.md).",
        f"{undefined_cuts(unsure)} {legend(every)} Two readings were fixed before the first run, the others are "
        "secondary or were added later.",
        by_tensor(every),
        sentence(every, NEIGHBOURS),
    ]
    return [line for text in texts for line in (text, "")]


def _every_reading(every: Sequence[Reading], unsure: Unsureness) -> list[str]:
    return [
        "## Every reading",
        "",
        "Differences from *skip* in points, mean over seeds, with the half-width of the 95 % interval (Student's t, "
        "paired by seed, not corrected). Bold: the interval leaves out 0. *Own best block*: each run at the block that "
        "is best on the images scored, as in the paper, which inflates both values. *Position removed*: after "
        "subtracting from each key the mean of its position over the images. "
        f"{UNSURE_MARK}: [undefined cuts](#what-limits-it) could change the sign. The two readings marked as the rule "
        "were fixed before the first run. Means of blocks 5-12 at the other tensors and at 128 pixels were planned "
        "then as secondary; the other choices of blocks, the other scenes and removed positions were added after the "
        "rows had been seen.",
        "",
        "### Object discovery, CorLoc",
        "",
        *table(every, DISCOVERY, unsure.turned),
        "### Segmentation, mIoU",
        "",
        *table(every, SEGMENTATION),
        "### k-NN, accuracy",
        "",
        *table(every, NEIGHBOURS),
    ]


def _rule(sources: Sources) -> list[str]:
    primary = comparisons(sources.rows, PRIMARY)
    return [
        "## The rule that was fixed before the first run",
        "",
        "Rule, sizes and settings stand in `configs/results/evidence.yaml`: two measures at the size of training, "
        "means over blocks 5 to 12, each skipless network against *skip* by a t test of the differences of seeds, with "
        "Holm's correction over all six.",
        "",
        *_primary(primary),
        *_levels(sources.rows, PRIMARY),
        "± is the standard deviation over seeds, with their number in brackets. The mIoU of networks is given above "
        "that of colours; the row of colours is as measured. Colours and random patch are features of pixels without a "
        "network ([protocols](../protocols.md#without-a-network)).",
        "",
        _simulated(sources.rule),
        "",
    ]


def _afterwards(sources: Sources, unsure: Unsureness) -> list[str]:
    other = _other_study(sources.dial)
    return [
        "## What was added after the rows had been seen",
        "",
        "**Networks against the best baseline without a network**, means over blocks 5 to 12, Student's t over seeds, "
        "not corrected:",
        "",
        *against_baselines(sources.rows),
        *other,
        f"**Others.** [A reproduction]({THIRD_PARTY}) of *Cutting the Skip* on Tiny-ImageNet with DINO and ViT-S "
        "reports that the network with skips is at or above the one with the paper's initialisation in every row of "
        "segmentation and at TokenCut's best block. That features of late blocks carry positions is known: see [late "
        "blocks](late_blocks.md#what-others-found).",
        "",
        "## What limits it",
        "",
        _chosen_rates(sources.rates),
        "",
        f"*{label('paper')}* has the paper's initialisation with a β that the paper does not print for width 128: we "
        "extrapolate it. One loss (patch contrast), one width, one training set, six epochs, and scenes composed by "
        "us.",
        "",
        f"{ISOLATED} {HEADS}.",
        "",
        *_degenerate(sources.rows, unsure),
        *_machines(sources.rows),
    ]


def _details(sources: Sources) -> list[str]:
    rows = sources.rows
    hours = {row["model"]: float(row["seconds"]) / 3600 for row in rows if not row["model"].startswith("baseline")}
    machines = sorted({row["machine"] for row in rows})
    return [
        "## By block",
        "",
        *_curves(rows),
        *folded("Levels by other readings", _levels(rows, SECONDARY)),
        *folded("Learning rates", _rates(sources.rates)),
        *folded("The second study's rows", _second(sources.second)),
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


def _second(rows: Rows) -> list[str]:
    return [
        "The second study trained networks of width 128 at 48 pixels for 30 epochs of patch contrast on 3,200 "
        "photographs, with three seeds of *skip* and *mixing*. Its rows were seen before the third study's rule was "
        "written. Differences in points with the half-width of their 95 % interval, not corrected:",
        "",
        *second_study(rows),
        "Its scenes had one cut-out per class, the same in training and validation, so its values say little about a "
        "network. Its runs are gone; `dense_seeds/rows.csv` has the printed values by block, with one decimal. It also "
        "had other initialisations, AdamW and DINO's loss with one or two seeds (`dense/rows.csv`, "
        "`dense_adamw/rows.csv`, `dense_dino/rows.csv`), which decide nothing. Its pages are withdrawn.",
        "",
    ]


def write_pages(sources: Sources, path: Path, readme: Path) -> None:
    """Write the page, and README's paragraph between its two marks."""
    write_text(path, page(sources) + "\n")
    write_text(readme, with_paragraph(readme.read_text(encoding="utf-8"), sources))


def with_paragraph(text: str, sources: Sources) -> str:
    """Return README's text with the study's paragraph in place of the one between the marks."""
    before, _, rest = text.partition(README_MARKS[0])
    _, _, after = rest.partition(README_MARKS[1])
    paragraph = readme_paragraph(readings(sources.rows, sources.late_blocks), sources)
    return f"{before}{README_MARKS[0]}\n{paragraph}\n{README_MARKS[1]}{after}"
