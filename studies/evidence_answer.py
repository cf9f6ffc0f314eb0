# Frozen: rows docs/results/evidence/rows.csv.gz, commit 928ad55c, 2026-11-26.
"""The answer of the third study in a few sentences, as its page and README begin: each is made from rows."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from studies.evidence_readings import (
    DISCOVERY,
    FIXED,
    IMAGES,
    MEASURES,
    METRICS,
    OTHER_IMAGES,
    RULES,
    SEGMENTATION,
    TITLES,
    UNSURE_MARK,
    Reading,
    Unsure,
    group_lines,
    late_block_curves,
    named,
    of_task,
    outcome,
    sentence,
    values,
    verdict,
)
from studies.evidence_rows import (
    NETWORKS,
    SEEDS,
    SKIPLESS,
    Curve,
    Measure,
    Paired,
    Rows,
    curves,
    differences,
    floor,
    label,
    mean_of_late_blocks,
)
from studies.late_blocks_page import AS_IS, ERROR, OUT, at_last_epoch

BASELINE_LABELS = {"colours": "colours of patches", "random patch": "patches through a random layer"}
FLOORS = ("colours", "random patch", "majority class", "centre box")
PRIMARY = (
    Measure("mIoU above colours", "probe", "mIoU", "scenes", "out"),
    Measure("CorLoc", "tokencut", "CorLoc", "scenes", "key"),
)
_DIAL = Measure("", "tokencut", "CorLoc", "scenes", "key")
_DIAL_NETWORKS = ("mixing", "mixing_annealed", "paper_annealed", "mixing_distilled")
_DIAL_EPOCH = "11"


@dataclass(frozen=True)
class Sources:
    """The rows that the page is made of, each a committed file below ``docs/results``."""

    rows: Rows
    rates: Rows
    rule: Rows
    second: Rows
    late_blocks: Rows
    dial: Rows
    epochs: Rows


@dataclass(frozen=True)
class Unsureness:
    """Differences in CorLoc whose sign undefined cuts could change, of how many, and how many lack a record of them."""

    turned: Unsure
    checked: int
    unrecorded: int


# --- what the sentences are of -----------------------------------------------------------------------


def baselines(rows: Rows, measure: Measure) -> tuple[str, float, dict[str, Paired]] | None:
    """Return the best baseline without a network, its height, and by how much each network is above it, by seed.

    Means over blocks 5 to 12; None where no baseline was measured.
    """
    heights = {name: value for name in FLOORS if (value := floor(rows, measure, name)) is not None}
    if not heights:
        return None
    best = max(heights, key=lambda name: heights[name])
    of = curves(rows, measure)
    leads = {
        network: Paired({seed: mean_of_late_blocks(curve) - heights[best] for seed, curve in of[network].items()})
        for network in NETWORKS
    }
    return best, heights[best], leads


def mean_rates(rates: Rows) -> dict[str, dict[float, float]]:
    """Return mean mIoU over seeds after 100 steps, by network and learning rate."""
    every: dict[str, dict[float, list[float]]] = {network: {} for network in NETWORKS}
    for row in rates:
        every[row["network"]].setdefault(float(row["lr"]), []).append(float(row["miou"]))
    return {
        name: {lr: statistics.mean(of_lr) for lr, of_lr in sorted(by.items())} for name, by in every.items()
    }  # fmt: skip


def chosen_rates(rates: Rows) -> dict[str, float]:
    """Return the learning rate with the best mIoU of each network that has any."""
    return {network: max(by, key=lambda lr: by[lr]) for network, by in mean_rates(rates).items() if by}


def dial_curves(dial: Rows) -> dict[str, dict[int, dict[int, float]]]:
    """Return CorLoc of keys after training in the study from skips to none, by network, seed and block."""
    of: dict[str, dict[int, dict[int, float]]] = {name: {} for name in ("skip", *_DIAL_NETWORKS)}
    for row in dial:
        match = re.fullmatch(r"(\w+)-soap-s(\d+)", row["model"])
        trained = row["epoch"] == _DIAL_EPOCH and row["block"].isdigit() and not row["note"]
        if match and trained and _DIAL.is_of(row) and row["facet"] == _DIAL.facet:
            of[match[1]].setdefault(int(match[2]), {})[int(row["block"])] = float(row["value"])
    return of


def dial_leads(dial: Rows) -> dict[str, dict[str, Paired]]:
    """Return the leads over *skip* in the study from skips to none by rule and network; none without its rows."""
    of = dial_curves(dial)
    there = [name for name in _DIAL_NETWORKS if of[name] and of["skip"]]
    every = {
        rule: {name: Paired(differences(of, name, "skip", count)) for name in there} for rule, count in RULES.items()
    }
    return every if there else {}


def unsure_signs(rows: Rows, every: Sequence[Reading]) -> Unsureness:
    """Return which differences in CorLoc have a sign that could change if undefined cuts are misses."""
    turned, checked = set(), 0
    for measure in (measure for task, measure in MEASURES if task == DISCOVERY):
        of, share = curves(rows, measure), curves(rows, measure, "degenerate")
        for (rule, count), network in product(RULES.items(), SKIPLESS):
            low, high = (_with_misses(of, share, {name}) for name in (network, "skip"))
            ends = [Paired(differences(curve, network, "skip", count)).sign for curve in (low, high)]
            checked += 1
            if set(ends) != {Paired(differences(of, network, "skip", count)).sign}:
                turned.add((network, IMAGES[measure.dataset], measure.facet, rule))
    others = sum(reading.images == OTHER_IMAGES for reading in of_task(every, DISCOVERY))
    return Unsureness(frozenset(turned), checked, others * len(SKIPLESS))


def _with_misses(
    of: Mapping[str, Mapping[int, Curve]], share: Mapping[str, Mapping[int, Curve]], networks: set[str]
) -> dict[str, dict[int, dict[int, float]]]:
    """Return CorLoc with every undefined cut of some networks counted as a miss, as far as hits allow."""
    return {
        network: {
            seed: {
                block: max(value - 100 * share[network][seed][block], 0.0) if network in networks else value
                for block, value in curve.items()
            }
            for seed, curve in by.items()
        }
        for network, by in of.items()
    }


# --- sentences ---------------------------------------------------------------------------------------


def short_answer(every: Sequence[Reading], sources: Sources, dial_page: str = "dial.md") -> list[str]:
    """Return the answer on segmentation, on discovery, on learning rates; ``dial_page`` is where a link leads."""
    fixed = {reading.task: reading for reading in every if reading.is_the_rule}
    unsure = unsure_signs(sources.rows, every)
    word = verdict(of_task(every, DISCOVERY))
    texts = [
        f"{sentence(every, SEGMENTATION)} In the reading fixed before the first run (block outputs, mean of blocks 5 "
        f"to 12): {values(fixed[SEGMENTATION])}. {_against(sources.rows, PRIMARY[0])} {_segmentation_rates(sources)}",
        f"**{TITLES[DISCOVERY]}: {word}.** In the reading fixed before the first run (keys, mean of blocks 5 to 12): "
        f"{values(fixed[DISCOVERY], unsure.turned)} points of {METRICS[DISCOVERY]}. "
        f"{_against(sources.rows, PRIMARY[1])} {_own_best(every, unsure)} {_other_study(sources.dial, dial_page)}",
        learning_rates(sources),
    ]
    return [text.strip() for text in texts if text]


def _segmentation_rates(sources: Sources) -> str:
    """Return what is not known of mIoU because learning rates differ; empty if they do not."""
    best = chosen_rates(sources.rates)
    differ = {"skip", "mixing"} <= set(best) and best["skip"] != best["mixing"]
    return "Learning rates differ too, and mIoU at exchanged rates was not measured." if differ else ""


def _against(rows: Rows, measure: Measure) -> str:
    """Return which networks are above, undecided against and below the best baseline without a network."""
    if (found := baselines(rows, measure)) is None:
        return ""
    name, height, leads = found
    parts = [
        f"{words} {', '.join(f'*{label(network)}* ({_mean(leads[network])})' for network in some)}"
        for sign, words in ((1, "above it"), (0, "undecided against it"), (-1, "below it"))
        if (some := [network for network, lead in leads.items() if lead.sign == sign])
    ]
    return (
        f"Best baseline without a network there: {BASELINE_LABELS.get(name, name)} ({height:.1f}); {', '.join(parts)}."
    )


def _mean(lead: Paired) -> str:
    return f"{lead.mean:+.1f}".replace("-", "−")


def _own_best(every: Sequence[Reading], unsure: Unsureness) -> str:
    """Return what the paper's choice of tensor and block gives, on all sets of images."""
    own = [reading for reading in every if reading.is_the_papers]
    (same,) = [reading for reading in own if reading.images == IMAGES["scenes"]]
    differences_of = values(same, unsure.turned, names=False)
    return (
        f"At each run's own best block (keys; the paper's choice), in {len(own)} sets of images: "
        f"{'; '.join(outcome(own, network) for network in SKIPLESS)} (64 px: {differences_of})."
    )


def _other_study(dial: Rows, link: str) -> str:
    """Return who leads in the study from skips to none, by the fixed reading of discovery."""
    leads = dial_leads(dial).get(FIXED)
    if not leads:
        return ""
    both = {name: lead for name, lead in leads.items() if label(name) in map(label, SKIPLESS)}
    return (
        f"In [another study of ours]({link}) (the fixed reading, trained at 48 px) {leading(leads)}: {named(both)}."
    )  # fmt: skip


def leading(leads: Mapping[str, Paired]) -> str:
    """Return which networks of a study lead over *skip*."""
    ahead = [f"*{label(name)}*" for name, lead in leads.items() if lead.sign > 0]
    if ahead:
        return f"{', '.join(ahead)} lead{'s' if len(ahead) == 1 else ''}"
    behind = sum(lead.sign < 0 for lead in leads.values())
    return f"no network without skips leads and {behind} of {len(leads)} trail"


@dataclass(frozen=True)
class SameRate:
    """CorLoc in blocks 5 to 12 on the other scenes, means over seeds: *skip* and *mixing* at each other's rate."""

    seeds: int
    skip: float
    skip_at_its_own: float
    mixing: float
    mixing_at_the_other: float | None = None

    @property
    def is_closed(self) -> bool:
        """Whether *skip* has no deficit at *mixing*'s rate and has one at its own, beyond the error of one CorLoc."""
        return self.skip > self.mixing - ERROR and self.skip_at_its_own < self.mixing - ERROR

    @property
    def relation(self) -> str:
        """Position of *skip* at *mixing*'s rate: within the error of *mixing*, above it, or below it."""
        if abs(self.skip - self.mixing) <= ERROR:
            return f"within {ERROR} points of"
        return "above" if self.skip > self.mixing else "below"


def same_rate(sources: Sources, measure: str) -> SameRate | None:
    """Return a measure of late blocks with *skip* trained at the rate of *mixing*; None where that was not measured."""
    rate = chosen_rates(sources.rates).get("mixing")
    at_rate = at_last_epoch(sources.epochs, measure).get(("skip", f"{rate:g}"), {}) if rate else {}
    own = late_block_curves(sources.late_blocks, measure)
    if not at_rate or not own["skip"] or not own["mixing"]:
        return None
    swapped, skip, mixing = (
        statistics.mean(map(mean_of_late_blocks, by.values())) for by in (at_rate, own["skip"], own["mixing"])
    )
    other = chosen_rates(sources.rates).get("skip")
    exchanged = at_last_epoch(sources.epochs, measure).get(("mixing", f"{other:g}"), {}) if other else {}
    turned = statistics.mean(map(mean_of_late_blocks, exchanged.values())) if exchanged else None
    return SameRate(len(at_rate), swapped, skip, mixing, turned)


def learning_rates(sources: Sources) -> str:
    """Return by how much the rates of *skip* and *mixing* differ, and what the exchange shows; empty if unknown."""
    best = chosen_rates(sources.rates)
    if not {"skip", "mixing"} <= set(best):
        return ""
    said = (
        f"*skip* was trained at {best['skip'] / best['mixing']:.0f} times the learning rate of *mixing*, each chosen "
        "by mIoU after 100 steps."
    )
    keys = same_rate(sources, AS_IS)
    if keys is None:
        return f"**Learning rates differ.** {said} Neither was measured at the other's."
    title = "The lead of *mixing* depends on the learning rate" if keys.is_closed else "Learning rates differ"
    turned = keys.mixing_at_the_other
    exchanged = "" if turned is None else f"; at *skip*'s rate *mixing* has {turned:.0f}"
    return (
        f"**{title}.** {said} At *mixing*'s rate ({keys.seeds} seeds, 100 other scenes, blocks 5 to 12) the keys of "
        f"*skip* have a CorLoc of {keys.skip:.0f} ({keys.skip_at_its_own:.0f} at its own), {keys.relation} *mixing* "
        f"({keys.mixing:.0f}){exchanged}."
    )


def outputs_at_the_same_rate(sources: Sources) -> str:
    """Return what :func:`learning_rates` says of keys for block outputs; empty if not measured."""
    outputs = same_rate(sources, OUT)
    return (
        f"Its block outputs have {outputs.skip:.0f} there ({outputs.skip_at_its_own:.0f} at its own), "
        f"{outputs.relation} those of *mixing* ({outputs.mixing:.0f})."
        if outputs
        else ""
    )


ISOLATED = (
    "Not isolated: besides skips and learning rate, *mixing* and *skip* differ in initialisation and in heads that mix"
)
HEADS = "(at the start one head of every fourth block averages over all tokens)"


def undefined_cuts(unsure: Unsureness) -> str:
    """Return what the mark of unsure differences says, and how many have it."""
    return (
        f"{UNSURE_MARK}: undefined cuts (all affinities of an image above TokenCut's τ) could change the sign, at "
        f"worst of {len(unsure.turned)} of {unsure.checked} differences in CorLoc; on the other scenes "
        f"({unsure.unrecorded} more) they were not recorded."
    )


def legend(every: Sequence[Reading]) -> str:
    """Return what *leads* and ± say, and of how many seeds."""
    of = of_task(every, DISCOVERY)
    counts = [min(lead.n for lead in reading.leads.values()) for reading in of]
    fewer = sum(count < len(SEEDS) for count in counts)
    less = f" ({min(counts)} of a network in {fewer} of {len(of)} readings of discovery)" if fewer else ""
    return f"*Leads*, *trails*, ±: 95 % interval over {max(counts)} seeds{less}, not corrected for many readings."


def about(study: str) -> str:
    """Return what was measured on what; ``study`` is the study's name, or a link to it."""
    return (
        "Are the dense features of a skipless network better? On composed scenes of 64 and 128 pixels, by a linear "
        f"probe (segmentation) and TokenCut (object discovery), {study} compares three small networks (width 128, six "
        "epochs at 64 pixels) that end without skips with one that has them, *skip*: *mixing* has our calibrated "
        f"initialisation, *annealed* also has skips that fade out in training, *{label('paper')}* has the paper's "
        "initialisation."
    )


def by_tensor(every: Sequence[Reading]) -> str:
    """Return in how many readings of object discovery each network leads or trails, by tensor."""
    return f"Object discovery by tensor, over images and choices of blocks. {' '.join(group_lines(every))}"


def readme_paragraph(every: Sequence[Reading], sources: Sources) -> str:
    """Return README's paragraph on the study, made from the readings as the page is."""
    segmentation, discovery, *rates = short_answer(every, sources, "docs/results/dial.md")
    texts = [
        segmentation,
        discovery,
        f"{' '.join(rates)} {ISOLATED}. Why late keys of *skip* are low: [late blocks](docs/results/late_blocks.md).",
        f"{undefined_cuts(unsure_signs(sources.rows, every))} {legend(every)}",
    ]
    return "\n".join(
        [
            textwrap.fill(about("[our study](docs/results/evidence.md)"), 120, break_on_hyphens=False),
            "",
            *(
                textwrap.fill(text, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
                for text in texts
            ),
        ]
    )
