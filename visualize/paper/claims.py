"""What a study says of each claim of "Cutting the Skip": supported, contradicted, mixed or undecided, and by what.

A claim is that some numbers are above others, or at most a margin below. Every pair of variants that a rule of
:data:`RULES` names is a comparison on every benchmark that both have; all comparisons of all claims are corrected
together for their number (Holm), and one counts where its corrected p is below 0.05. A claim is supported if
comparisons count for it and none against it, contradicted if they count against it alone, mixed if both ways, and
undecided if none counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from dinoskip.estimates import SIGNIFICANT
from dinoskip.statistics import holm
from visualize.comparison import Score, Scores
from visualize.paper.compare import ComparedStudy
from visualize.paper.published import DEFAULT, EPOCHS, INITIALISED, SKIP
from visualize.roughness import smoother, typical
from visualize.rows import Benchmark, StudyVariant
from visualize.tables import TextTable

SUPPORTED, CONTRADICTED, MIXED, UNDECIDED = "supported", "contradicted", "mixed", "undecided"
SINGLE, SEVERAL, EARLIER, LAST = "single", "several", "earlier", "last"  # features of which blocks
_BY_FEATURES = {SINGLE: Scores.chosen, SEVERAL: Scores.several, EARLIER: Scores.earlier, LAST: Scores.last}
_NO_PAIR = "no two variants of this study differ in this alone"
_ALL_BLOCKS = 12

Roughness = Mapping[str, Sequence[float | None]]  # by variant, one value an image


@dataclass(frozen=True)
class Side:
    """Which variants, at which epoch, by which of their features. ``None`` is any that both sides share.

    ``epochs`` are the paper's of 300, our share of the run; each that there are rows of is compared.
    """

    roles: tuple[str, ...]
    optimizer: str | None = None
    depth: int | None = None
    epochs: tuple[int, ...] = (EPOCHS,)
    features: str | None = None


@dataclass(frozen=True)
class Rule:
    """A claim that ``high`` is above ``low``, or at most ``margin`` percent points below it.

    Variants are paired that are equal in ``alike``; ``features`` are those of both sides where a side names none;
    ``datasets`` says by the paper's name which data sets it is about.
    """

    text: str
    high: Side
    low: Side
    tasks: tuple[str, ...]
    alike: tuple[str, ...] = ("optimizer", "depth")
    features: tuple[str, ...] = (SINGLE,)
    datasets: Callable[[str], bool] = lambda name: True
    margin: float = 0.0
    missing: str = _NO_PAIR


_ANY = (SKIP, DEFAULT, INITIALISED)
_ACCURACY = ("knn", "classify")  # of the network as a whole: its last block's
_LEARNT = (*_ACCURACY, "probe")  # what a network that does not train loses
_DENSE = ("probe", "tokencut")
_SKIPLESS, _WITH_SKIPS = Side((INITIALISED,)), Side((SKIP,))
_EARLY = replace(_SKIPLESS, epochs=(200,))
_BOTH_EPOCHS = (EPOCHS, 200)
_MULTISCALE = (SEVERAL,)
COMPARABLE = 2.0  # percent points: what "comparably" may mean
NO_LOSS = 1.0  # percent points: what shorter training may cost


def _with(side: Side, optimizer: str) -> Side:
    return replace(side, optimizer=optimizer)


def _is_ade20k(name: str) -> bool:
    return name == "ADE20K"


def _is_not_ade20k(name: str) -> bool:
    return name != "ADE20K"


def _is_complex(name: str) -> bool:
    return name in {"ADE20K", "COCO-Stuff"}


RULES = (
    Rule("Without skips, the default initialisation is worse (table 1)", _WITH_SKIPS, Side((DEFAULT,)), _LEARNT),
    Rule("The initialisation rescues it (table 1)", _SKIPLESS, Side((DEFAULT,)), _LEARNT),
    Rule(
        "Skipless with SOAP is above skip, with either optimizer (table 1)",
        _with(_SKIPLESS, "soap"), _WITH_SKIPS, _ACCURACY, ("depth",),
    ),
    Rule(
        "Without skips, SOAP is better than AdamW (table 1)",
        Side((DEFAULT, INITIALISED), "soap"), Side((DEFAULT, INITIALISED), "adamw"), _ACCURACY, ("role", "depth"),
    ),
    Rule(
        "SOAP is better in object discovery (figure 3)",
        Side(_ANY, "soap"), Side(_ANY, "adamw"), ("tokencut",), ("role", "depth"),
    ),
    Rule(
        "SOAP is worse in segmentation (table 2)",
        Side(_ANY, "adamw"), Side(_ANY, "soap"), ("probe",), ("role", "depth"), (SINGLE, SEVERAL),
    ),
    *(
        Rule(
            f"Skipless is above skip in segmentation, {blocks}, {optimizer}{sets} (table 2)",
            Side((INITIALISED,), optimizer.lower(), epochs=_BOTH_EPOCHS), _with(_WITH_SKIPS, optimizer.lower()),
            ("probe",), features=features, datasets=datasets,
            missing=f"no two networks, with and without skips, have rows of {blocks}, {optimizer}{sets}",
        )
        for optimizer in ("AdamW", "SOAP")
        for blocks, features, datasets, sets in (
            ("one block", (SINGLE,), _is_not_ade20k, ""),
            ("one block", (SINGLE,), _is_ade20k, ", ADE20K"),
            ("several blocks", _MULTISCALE, _is_not_ade20k, ""),
            ("several blocks", _MULTISCALE, _is_ade20k, ", ADE20K"),
        )
    ),
    Rule("Skipless is above skip in object discovery (figure 3)", _SKIPLESS, _WITH_SKIPS, ("tokencut",)),
    Rule(
        "After 200 of 300 epochs skipless is already above skip after 300, ADE20K apart (table 2, figure 3)",
        _EARLY, _WITH_SKIPS, _DENSE, features=(SINGLE, SEVERAL), datasets=_is_not_ade20k,
        missing="no skipless variant was evaluated after two thirds of its epochs",
    ),
    Rule(
        f"The last 100 of 300 epochs add nothing: at most {NO_LOSS:g} point is lost without (table 2, figure 3)",
        _EARLY, _SKIPLESS, _DENSE, ("name",), (SINGLE, SEVERAL), margin=NO_LOSS,
        missing="no skipless variant was evaluated after two thirds of its epochs",
    ),
    Rule(
        "The best dense features of a skipless network are not the last block's",
        replace(_SKIPLESS, features=EARLIER), replace(_SKIPLESS, features=LAST), _DENSE, ("name",),
        missing="no dense features of an initialised skipless network, block by block",
    ),
    Rule(
        "Several blocks lift skipless networks in complex scenes (table 2)",
        replace(_SKIPLESS, features=SEVERAL), replace(_SKIPLESS, features=SINGLE), ("probe",), ("name",),
        datasets=_is_complex, missing="no segmentation of ADE20K or COCO-Stuff from one and from several blocks",
    ),
    Rule(
        f"10 skipless blocks do as 12 with skips: at most {COMPARABLE:g} points less, several blocks (table 3)",
        Side((INITIALISED,), depth=10, epochs=_BOTH_EPOCHS), Side((SKIP,), depth=_ALL_BLOCKS), ("probe",),
        ("optimizer",), _MULTISCALE, margin=COMPARABLE, missing="no skipless variant of 10 blocks was trained",
    ),
    Rule(
        "9 skipless blocks are above 12 with skips in object discovery (table 4)",
        Side((INITIALISED,), depth=9), Side((SKIP,), depth=_ALL_BLOCKS), ("tokencut",), ("optimizer",),
        missing="no skipless variant of 9 blocks was trained",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Two numbers side by side; ``p`` is that of the claim's opposite being as likely, before any correction.

    ``direction`` is 1 if the difference points the claim's way, -1 if the other; ``sign`` is the same where it counts
    after the correction (:func:`corrected`), else 0.
    """

    text: str
    p: float
    direction: int
    sign: int = 0


@dataclass(frozen=True)
class Claim:
    """A claim and every comparison that this study has of it."""

    text: str
    comparisons: Sequence[Comparison]
    missing: str = ""  # why there is no comparison

    @property
    def verdict(self) -> str:
        """One of :data:`SUPPORTED`, :data:`CONTRADICTED`, :data:`MIXED`, :data:`UNDECIDED`."""
        signs = frozenset(one.sign for one in self.comparisons) - {0}
        return {frozenset({1}): SUPPORTED, frozenset({-1}): CONTRADICTED, frozenset(): UNDECIDED}.get(signs, MIXED)


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
    """The same with the sign of each comparison that counts, corrected over all of them by Holm's procedure."""
    adjusted = iter(holm([one.p for claim in judged for one in claim.comparisons]))
    return [
        replace(
            claim,
            comparisons=[
                replace(one, sign=one.direction if next(adjusted) < SIGNIFICANT else 0) for one in claim.comparisons
            ],
        )
        for claim in judged
    ]


def _comparisons(rule: Rule, study: ComparedStudy, scores: Scores) -> Iterator[Comparison]:
    """What a study has of a rule, each compared over its images."""
    for benchmark, high, low in pairs_of(rule, study, scores):
        compared = _compared(benchmark.label, high, low, rule.margin)
        if compared is not None:
            yield _of_rates(compared, [one for one in study.variants if one.name in {high.row.model, low.row.model}])


def _of_rates(compared: Comparison, variants: Sequence[StudyVariant]) -> Comparison:
    """The same, undecided where a learning rate is unresolved."""
    names = [one.name for one in variants if one.unresolved]
    if not names:
        return compared
    return replace(compared, p=math.nan, text=f"{compared.text}; rate of {' and '.join(names)} unresolved")


def pairs_of(rule: Rule, study: ComparedStudy, scores: Scores) -> Iterator[tuple[Benchmark, Score, Score]]:
    """What a study of principal rows has of a rule, by benchmark; the side that should be above comes first."""
    pairs = [
        (high, low)
        for high, low in product(study.variants, study.variants)
        if _is_on(rule.high, high)
        and _is_on(rule.low, low)
        and all(getattr(high, name) == getattr(low, name) for name in rule.alike)
    ]
    for (high, low), features, benchmark in product(pairs, rule.features, scores.benchmarks):
        if benchmark.task in rule.tasks and rule.datasets(study.paper_name(benchmark.dataset)):
            sides = (
                _scores_of(side, variant, features, benchmark, study, scores)
                for side, variant in ((rule.high, high), (rule.low, low))
            )
            for above, below in product(*sides):
                yield benchmark, above, below


def _is_on(side: Side, variant: StudyVariant) -> bool:
    return (
        variant.role in side.roles
        and side.optimizer in {None, variant.optimizer}
        and side.depth in {None, variant.depth}
    )


def _scores_of(
    side: Side, variant: StudyVariant, features: str, benchmark: Benchmark, study: ComparedStudy, scores: Scores
) -> Iterator[Score]:
    """A side's numbers: at each of its epochs that there is, by its features, of accuracies the last block's."""
    kind = LAST if benchmark.task in _ACCURACY else side.features or features
    end = scores.last_epoch(variant.name, benchmark)
    for of_paper in side.epochs:
        epoch = end if of_paper == EPOCHS else study.epoch(of_paper)
        if of_paper == EPOCHS or 0 < epoch < end:
            score = _BY_FEATURES[kind](scores, scores.rows(variant.name, benchmark, epoch))
            if score is not None:
                yield score if epoch == end else replace(score, when=f"epoch {epoch}")


def _compared(label: str, high: Score, low: Score, margin: float) -> Comparison | None:
    """``high`` should be the larger, or at most ``margin`` smaller; a collapsed network never wins."""
    difference = high.minus(low)
    if difference is None:
        return None
    above = difference.value + margin
    direction = (above > 0) - (above < 0)
    if (high.collapsed and direction > 0) or (low.collapsed and direction < 0):
        direction = 0
    return Comparison(f"{label}: {high.text} − {low.text} = {difference.text}", difference.p_of(-margin), direction)


def _pictures(variants: Sequence[StudyVariant], roughness: Roughness) -> Iterator[Comparison]:
    """Roughness of initialised skipless against skip, image by image."""
    for first, second in product(variants, variants):
        alike = (first.optimizer, first.depth) == (second.optimizer, second.depth)
        if alike and (first.role, second.role) == (INITIALISED, SKIP) and {first.name, second.name} <= set(roughness):
            wins, count, chance = smoother(roughness[first.name], roughness[second.name])
            sides = [(one.name, typical(roughness[one.name])) for one in (first, second)]
            medians = " against ".join(f"{name} {'–' if value is None else f'{value:.2f}'}" for name, value in sides)
            text = f"roughness: {medians}; smoother on {wins} of {count} images, p = {chance:.2g}"
            yield _of_rates(Comparison(text, chance, (2 * wins > count) - (2 * wins < count)), [first, second])


def claims_grid(judged: Sequence[Claim]) -> TextTable:
    """A line a claim with its verdict, then a line a comparison."""
    shown = {1: "+", 0: "=", -1: "−"}
    lines: list[list[str]] = []
    rules: set[int] = set()
    for claim in judged:
        rules.add(len(lines))
        lines.append([claim.text, claim.verdict, "" if claim.comparisons else claim.missing])
        lines += [["", shown[one.sign], one.text] for one in claim.comparisons]
    head = [[("claim", 1), ("here", 1), ("the rows that say so", 1)]]
    return TextTable("claims", "The paper's claims, here", head, lines, 3, frozenset(rules), [_note(judged)])


def _note(judged: Sequence[Claim]) -> str:
    count = sum(len(claim.comparisons) for claim in judged)
    return (
        "Of k-NN and top-1 the last block; else one block, chosen without the images shown where their records allow "
        "it. A comparison counts (+ for the claim, − against it) where p < 0.05 after Holm's correction for the "
        f"{count} comparisons of this table; = does not count. A claim is supported or contradicted if all that counts "
        "says so, mixed if not all does, undecided if nothing counts. A collapsed network never wins. One training run "
        "a variant: the intervals hold the images' chance, not the seed's."
    )
