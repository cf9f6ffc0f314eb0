"""Verdicts of a study on each claim of "Cutting the Skip" (supported, contradicted, mixed or undecided), with evidence.

A claim is that some numbers are above others, or at most a margin below (:mod:`dinoskip_papers.rules`). Every pair of
networks that its rule names is a comparison on every benchmark that both have, all seeds of a network together; as in
the report's answer the higher one must also be above its own start, and what was chosen on the images shown decides
nothing (:mod:`dinoskip.decisions.comparing`). All comparisons of all claims are corrected together for their number
(Holm), and one counts where its corrected p is below 0.05. A claim is supported if comparisons count for it and none
against it, contradicted if they count against it alone, mixed if both ways, and undecided if none counts; the word says
where all that counts is of one training each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from dinoskip.decisions.comparing import ONE_EACH, ComparedPair, NetworkScores, compared_pair
from dinoskip.decisions.wording import points, signed
from dinoskip.results.estimates import SIGNIFICANT, difference, estimate, one_sided
from dinoskip.results.statistics import holm
from dinoskip_papers.compare import ComparedStudy
from dinoskip_papers.published import EPOCHS
from dinoskip_papers.rules import ACCURACY, EARLIER, LAST, RULES, SEVERAL, SINGLE, Rule, Side
from visualize.comparison import Scores, text_of
from visualize.roughness import Roughness, smoother, typical
from visualize.rows import INITIALISED, SKIP, Benchmark, StudyVariant, families
from visualize.tables import TextTable, mean_deviation

SUPPORTED, CONTRADICTED, MIXED, UNDECIDED = "supported", "contradicted", "mixed", "undecided"
_BY_FEATURES = {SINGLE: Scores.chosen, SEVERAL: Scores.several, EARLIER: Scores.earlier, LAST: Scores.last}


@dataclass(frozen=True)
class Comparison:
    """Two numbers side by side; ``p`` is that of the claim's opposite being as likely, before any correction.

    ``direction`` is 1 if the difference points the claim's way, -1 if the other; ``sign`` is the same where it counts
    after the correction (:func:`corrected`), else 0. ``one_each``: both networks were trained once.
    """

    text: str
    p: float
    direction: int
    sign: int = 0
    one_each: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim and every comparison that this study has of it."""

    text: str
    comparisons: Sequence[Comparison]
    missing: str = ""  # why there is no comparison

    @property
    def verdict(self) -> str:
        """One of :data:`SUPPORTED`, :data:`CONTRADICTED`, :data:`MIXED`, :data:`UNDECIDED`.

        It says so where all that counts is of one training each: another training may turn it.
        """
        counts = [pair for pair in self.comparisons if pair.sign]
        signs = frozenset(pair.sign for pair in counts)
        word = {frozenset({1}): SUPPORTED, frozenset({-1}): CONTRADICTED, frozenset(): UNDECIDED}.get(signs, MIXED)
        return f"{word}, {ONE_EACH}" if counts and all(pair.one_each for pair in counts) else word


def claims(study: ComparedStudy, scores: Scores, roughness: Roughness | None = None, block: int = 0) -> list[Claim]:
    """The paper's claims in its order. ``roughness`` is of the PCA pictures at ``block``, by variant and image."""
    ours = study.principal()
    pictures = f"PCA pictures of skipless networks are cleaner{f', block {block}' if block else ''} (figure 4)"
    return corrected(
        [
            *(Claim(rule.text, list(_comparisons(rule, ours, scores)), rule.missing) for rule in RULES),
            Claim(pictures, list(_pictures(ours.variants, roughness or {})), "no gallery of both"),
        ]
    )


def corrected(judged: Sequence[Claim]) -> list[Claim]:
    """Set the sign of each comparison that counts after Holm's correction over the comparisons of all claims."""
    adjusted = iter(holm([pair.p for claim in judged for pair in claim.comparisons]))
    return [
        replace(
            claim,
            comparisons=[
                replace(pair, sign=pair.direction if next(adjusted) < SIGNIFICANT else 0) for pair in claim.comparisons
            ],
        )
        for claim in judged
    ]


def _comparisons(rule: Rule, study: ComparedStudy, scores: Scores) -> Iterator[Comparison]:
    """Yield the comparisons of a study that a rule is about."""
    for benchmark, high, low in pairs_of(rule, study, scores):
        pair = compared_pair(high, low, rule.margin)
        if pair is not None:
            yield _compared(benchmark.label, pair, rule.margin)


def pairs_of(
    rule: Rule, study: ComparedStudy, scores: Scores
) -> Iterator[tuple[Benchmark, NetworkScores, NetworkScores]]:
    """Yield the pairs of networks of a rule by benchmark; the side that should be above comes first.

    ``study`` holds principal rows only. A network stands with all its seeds of training.
    """
    networks = families(study.variants)
    pairs = [
        (high, low)
        for high, low in product(networks, networks)
        if _is_on(rule.high, networks[high][0])
        and _is_on(rule.low, networks[low][0])
        and all(
            high == low if name == "name" else getattr(networks[high][0], name) == getattr(networks[low][0], name)
            for name in rule.alike
        )
    ]
    for pair, features, benchmark in product(pairs, rule.features, scores.benchmarks):
        if benchmark.task in rule.tasks and rule.datasets(study.paper_name(benchmark.dataset)):
            sides = (
                _numbers_of(side, name, networks[name], features, benchmark, study, scores)
                for side, name in zip((rule.high, rule.low), pair, strict=True)
            )
            for above, below in product(*sides):
                yield benchmark, above, below


def _is_on(side: Side, variant: StudyVariant) -> bool:
    return (
        variant.role in side.roles
        and side.optimizer in {None, variant.optimizer}
        and side.depth in {None, variant.depth}
    )


def _numbers_of(
    side: Side,
    name: str,
    seeds: Sequence[StudyVariant],
    features: str,
    benchmark: Benchmark,
    study: ComparedStudy,
    scores: Scores,
) -> Iterator[NetworkScores]:
    """A side's numbers: at each of its epochs that there is, by its features, of accuracies the last block's."""
    by = _BY_FEATURES[LAST if benchmark.task in ACCURACY else side.features or features]
    unresolved = next(filter(None, (run.unresolved for run in seeds)), "")
    for of_paper in side.epochs:
        now, before = [], []
        for run in seeds:
            end = scores.last_epoch(run.name, benchmark)
            epoch = end if of_paper == EPOCHS else study.epoch(of_paper)
            score = by(scores, scores.rows(run.name, benchmark, epoch)) if of_paper == EPOCHS or epoch < end else None
            if score is not None and (of_paper == EPOCHS or epoch > 0):
                now.append(score if epoch == end else replace(score, when=f"epoch {epoch}"))
                before.append(by(scores, scores.rows(run.name, benchmark, 0)) if epoch > 0 else None)
        if now:
            starts = tuple(start for start in before if start) if all(before) else ()
            yield NetworkScores(name, tuple(now), starts, unresolved)


def _compared(label: str, pair: ComparedPair, margin: float) -> Comparison:
    """The first side should be the larger, or at most ``margin`` smaller; a collapsed network never wins."""
    judgement, less = pair.judgement, margin / 100
    gap = judgement.difference
    shown = replace(gap, value=gap.value - less, low=gap.low - less, high=gap.high - less)
    text = f"{label}: {text_of(pair.first)} − {text_of(pair.second)} = {points(shown.in_points)}"
    if judgement.gain is not None and not one_sided(judgement.gain) < SIGNIFICANT:
        text += f"; {pair.leader.name} is {signed(100 * judgement.gain.value)} from its own untrained state"
    text += "".join(f"; {why}" for why in (gap.why, pair.barred) if why)
    direction = 0 if pair.leader.is_dead else pair.direction
    return Comparison(text, pair.tested.p, direction, one_each=pair.one_each)


def _pictures(variants: Sequence[StudyVariant], roughness: Roughness) -> Iterator[Comparison]:
    """Roughness of initialised skipless against skip, image by image."""
    networks = families(variant for variant in variants if variant.name in roughness)
    for (first, first_seeds), (second, second_seeds) in product(networks.items(), networks.items()):
        alike = (first_seeds[0].optimizer, first_seeds[0].depth) == (second_seeds[0].optimizer, second_seeds[0].depth)
        if alike and (first_seeds[0].role, second_seeds[0].role) == (INITIALISED, SKIP):
            sides = {name: [roughness[variant.name] for variant in networks[name]] for name in (first, second)}
            compared = _smoother(sides)
            names = [seeds[0].name for seeds in (first_seeds, second_seeds) if seeds[0].unresolved]
            if names:  # nothing is tested
                text = f"{compared.text}; rate of {' and '.join(names)} unresolved"
                compared = replace(compared, p=math.nan, text=text)
            yield compared


def _smoother(sides: Mapping[str, Sequence[Sequence[float | None]]]) -> Comparison:
    """The first network's pictures against the second's, each of one or several seeds: lower is smoother.

    With a seed each it is a sign test over images; else images and seeds are random.
    """
    ours, theirs = sides.values()
    said = []
    for name, seeds in sides.items():
        medians = [value for value in map(typical, seeds) if value is not None]
        said.append(f"{name} {mean_deviation(medians, 2)}")
    text = f"roughness: {' against '.join(said)}"
    if len(ours) == len(theirs) == 1:
        wins, count, chance = smoother(ours[0], theirs[0])
        text += f"; smoother on {wins} of {count} images, p = {chance:.2g}"
        return Comparison(text, chance, (2 * wins > count) - (2 * wins < count), one_each=True)
    values = np.array([*ours, *theirs], dtype=np.float64)
    each = [estimate(of_images) for of_images in values[:, np.isfinite(values).all(0)]]
    gap = difference(each[len(ours) :], each[: len(ours)])
    text += f"; {gap.why}" if gap.why else f"; p = {gap.p:.2g}"
    return Comparison(text, gap.p, (gap.value > 0) - (gap.value < 0))


def claims_grid(judged: Sequence[Claim]) -> TextTable:
    """A line a claim with its verdict, then a line a comparison."""
    shown = {1: "+", 0: "=", -1: "−"}
    lines: list[list[str]] = []
    rules: set[int] = set()
    for claim in judged:
        rules.add(len(lines))
        lines.append([claim.text, claim.verdict, "" if claim.comparisons else claim.missing])
        lines += [["", shown[pair.sign], _said(pair)] for pair in claim.comparisons]
    head = [[("claim", 1), ("here", 1), ("the rows that say so", 1)]]
    return TextTable("claims", "The paper's claims, here", head, lines, 3, frozenset(rules), [_note(judged)])


def _said(pair: Comparison) -> str:
    return f"{pair.text}; {ONE_EACH}" if pair.sign and pair.one_each else pair.text


def _note(judged: Sequence[Claim]) -> str:
    count = sum(len(claim.comparisons) for claim in judged)
    return (
        "k-NN and top-1 are those of the last block; others of one block, chosen without the images shown where "
        "per-image scores allow it. A comparison counts (+ for the claim, − against it) where p < 0.05 after Holm's "
        f"correction for the {count} comparisons of this table; = does not count. A claim is supported or contradicted "
        "if all comparisons that count agree, mixed if they do not, undecided if none counts. A collapsed network "
        "never wins, nor one that is not above its own untrained state. With several training runs, p covers seeds and "
        "images; with one run, only the images."
    )
