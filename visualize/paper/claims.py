"""What a study says of each claim of "Cutting the Skip": supported, contradicted or undecided, and by which rows.

A claim is that some numbers are above others. Every pair that the study has, benchmark by benchmark and optimizer by
optimizer, is a comparison; it counts where the two 95 % intervals by the bootstrap do not overlap (for pictures: where
the sign test over images has p < 0.05). A claim is supported if comparisons count for it and none against it,
contradicted if they count against it alone, and undecided otherwise: nothing counts, or both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dinoskip.results import EvalResult
from visualize.paper.compare import ComparedStudy
from visualize.paper.published import DEFAULT, INITIALISED, SKIP
from visualize.roughness import smoother, typical
from visualize.rows import Benchmark, Rows, StudyVariant, best, last_epochs, one_vote, single_blocks, spread, values_of
from visualize.tables import TextTable

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
_NOTE = (
    "The rows of the last epoch: for k-NN and top-1 the last block, else each variant's best single block. "
    "A comparison counts (+ for the claim, − against it) "
    "where the two 95 % intervals by the bootstrap over images do not overlap, for pictures where a sign test over "
    "images has p < 0.05; = does not count. A claim is supported or contradicted if all that counts says so, else "
    "undecided. One training run a variant: the intervals hold the images' chance, not the seed's."
)
_ACCURACY = ("knn", "classify")  # of the network as a whole: its last block's
_COMPLEX = ("ADE20K", "COCO-Stuff")
_SIGNIFICANT = 0.05
_FEW_BLOCKS, _ALL_BLOCKS = 9, 12

Roughness = Mapping[str, Sequence[float | None]]  # by variant, one value an image


@dataclass(frozen=True)
class Comparison:
    """Two numbers side by side; ``sign`` is 1 if they count for the claim, -1 against it, 0 if not."""

    text: str
    sign: int


@dataclass(frozen=True)
class Claim:
    """A claim and every comparison that this study has of it."""

    text: str
    comparisons: Sequence[Comparison]
    missing: str = ""  # why there is no comparison

    @property
    def verdict(self) -> str:
        """One of :data:`SUPPORTED`, :data:`CONTRADICTED`, :data:`UNDECIDED`."""
        signs = {one.sign for one in self.comparisons} - {0}
        return {frozenset({1}): SUPPORTED, frozenset({-1}): CONTRADICTED}.get(frozenset(signs), UNDECIDED)


def claims(study: ComparedStudy, roughness: Roughness | None = None, block: int = 0) -> list[Claim]:
    """The paper's claims in its order. ``roughness`` is of the PCA pictures at ``block``, by variant and image."""
    ours = study.principal()
    found = one_vote(last_epochs({one.name: one.rows for one in ours.variants}))
    rows = _Rows(ours, found)
    dense, discovery = ("probe", "tokencut"), ("tokencut",)
    learnt = (*_ACCURACY, "probe")  # what a network that does not train loses
    default = "Without skips, the default initialisation does not train"
    none = "no two variants of this study differ in this alone"
    return [
        Claim(f"{default} (table 1)", list(rows.roles(SKIP, DEFAULT, learnt)), none),
        Claim("The initialisation rescues it (table 1)", list(rows.roles(INITIALISED, DEFAULT, learnt)), none),
        Claim("SOAP is better than AdamW (table 1)", list(rows.optimizers("soap", "adamw", _ACCURACY)), none),
        Claim("SOAP is better in object discovery (figure 3)", list(rows.optimizers("soap", "adamw", discovery)), none),
        Claim("SOAP is worse in segmentation (table 2)", list(rows.optimizers("adamw", "soap", ("probe",))), none),
        Claim(
            "Skipless beats skip on dense features (table 2, figure 3)",
            list(rows.roles(INITIALISED, SKIP, dense)),
            none,
        ),
        Claim(
            "The best dense features of a skipless network are not the last block's",
            list(rows.blocks(dense)),
            "no dense features of an initialised skipless network",
        ),
        Claim(
            "Several blocks lift skipless networks in complex scenes (table 2)",
            list(rows.several(_COMPLEX)),
            f"no segmentation of {' or '.join(_COMPLEX)} from one and from several blocks",
        ),
        Claim(
            f"In discovery, {_FEW_BLOCKS} skipless blocks beat {_ALL_BLOCKS} with skips (table 4)",
            list(rows.roles(INITIALISED, SKIP, discovery, (_FEW_BLOCKS, _ALL_BLOCKS))),
            f"no skipless variant of {_FEW_BLOCKS} blocks was trained",
        ),
        Claim(
            f"PCA pictures of skipless networks are cleaner{f', block {block}' if block else ''} (figure 4)",
            list(_pictures(ours.variants, roughness or {})),
            "no gallery of both",
        ),
    ]


class _Rows:
    """The comparisons between rows of a study."""

    def __init__(self, study: ComparedStudy, found: Mapping[Benchmark, Mapping[str, Mapping[str, EvalResult]]]) -> None:
        self.study, self.found = study, found

    def roles(
        self, high: str, low: str, tasks: Sequence[str], depths: tuple[int, int] | None = None
    ) -> Iterator[Comparison]:
        """Variants of the role ``high`` against those of ``low`` with the same optimizer and depth (or ``depths``)."""
        for first, second in _pairs(self.study.variants, lambda one: one.optimizer):
            deep = (first.depth, second.depth) == depths if depths else first.depth == second.depth
            if (first.role, second.role) == (high, low) and deep:
                yield from self._tops(first, second, tasks)

    def optimizers(self, high: str, low: str, tasks: Sequence[str]) -> Iterator[Comparison]:
        """Variants trained with ``high`` against those of the same role and depth trained with ``low``."""
        for first, second in _pairs(self.study.variants, lambda one: (one.role, one.depth)):
            if first.role and (first.optimizer, second.optimizer) == (high, low):
                yield from self._tops(first, second, tasks)

    def blocks(self, tasks: Sequence[str]) -> Iterator[Comparison]:
        """The best block of each initialised skipless variant against its last."""
        for one in self._initialised():
            for benchmark, rows in self._of(one, tasks):
                if (top := _top(rows)) is not None and (last := _last(rows)) is not None and last.block != "1":
                    yield _compared(benchmark, top, last, f"{one.name}: ")

    def several(self, datasets: Sequence[str]) -> Iterator[Comparison]:
        """Several blocks of each initialised skipless variant against its best one, on the paper's ``datasets``."""
        for one in self._initialised():
            for benchmark, rows in self._of(one, ("probe",)):
                top = _top(rows)
                if top is not None and self.study.datasets.get(benchmark.dataset, "") in datasets:
                    for block in (name for name in rows if "+" in name):
                        yield _compared(benchmark, rows[block], top, f"{one.name}: ")

    def _initialised(self) -> list[StudyVariant]:
        return [one for one in self.study.variants if one.role == INITIALISED]

    def _of(self, one: StudyVariant, tasks: Sequence[str]) -> Iterator[tuple[Benchmark, Mapping[str, EvalResult]]]:
        for benchmark, by in self.found.items():
            if one.name in by and benchmark.task in tasks:
                yield benchmark, by[one.name]

    def _tops(self, high: StudyVariant, low: StudyVariant, tasks: Sequence[str]) -> Iterator[Comparison]:
        """The best blocks of two variants (of accuracies the last), in every benchmark that both have."""
        theirs = dict(self._of(low, tasks))
        for benchmark, rows in self._of(high, tasks):
            of = _last if benchmark.task in _ACCURACY else _top
            sides = [of(own) for own in (rows, theirs.get(benchmark, {}))]
            if sides[0] is not None and sides[1] is not None:
                yield _compared(benchmark, sides[0], sides[1])


def _top(rows: Rows) -> EvalResult | None:
    """The best single block's row, None if there is none."""
    top = best(values_of(rows))
    return None if top is None else rows[top[0]]


def _last(rows: Rows) -> EvalResult | None:
    """The last single block's row, None if there is none."""
    last = max(single_blocks(values_of(rows)), default=None)
    return None if last is None else rows[str(last)]


def _pairs(
    variants: Sequence[StudyVariant], alike: Callable[[StudyVariant], object]
) -> Iterator[tuple[StudyVariant, StudyVariant]]:
    for first in variants:
        for second in variants:
            if first is not second and alike(first) == alike(second):
                yield first, second


def _compared(benchmark: Benchmark, high: EvalResult, low: EvalResult, whose: str = "") -> Comparison:
    """``high`` should be the larger; they count where their intervals do not overlap."""
    sign = 0
    if None not in (high.low, high.high, low.low, low.high):
        sign = int(high.low > low.high) - int(high.high < low.low)  # type: ignore[operator]
    sides = [_side(row, named=not whose) for row in (high, low)]
    return Comparison(f"{benchmark.label}: {whose}{sides[0]} against {sides[1]}", sign)


def _side(row: EvalResult, *, named: bool) -> str:
    """``skip-adamw 41.7 [40.0, 43.1] b9``."""
    block = f"b{row.block}" if row.block else ""
    return " ".join(filter(None, (row.model if named else "", f"{row.value:.1f}", spread(row), block)))


def _pictures(variants: Sequence[StudyVariant], roughness: Roughness) -> Iterator[Comparison]:
    """Roughness of initialised skipless against skip, image by image."""
    for first, second in _pairs(variants, lambda one: (one.optimizer, one.depth)):
        if (first.role, second.role) == (INITIALISED, SKIP) and {first.name, second.name} <= set(roughness):
            wins, count, chance = smoother(roughness[first.name], roughness[second.name])
            sign = 0 if not chance < _SIGNIFICANT else 1 if 2 * wins > count else -1
            sides = [(one.name, typical(roughness[one.name])) for one in (first, second)]
            medians = " against ".join(f"{name} {'–' if value is None else f'{value:.2f}'}" for name, value in sides)
            yield Comparison(f"roughness: {medians}; smoother on {wins} of {count} images, p = {chance:.2g}", sign)


def claims_grid(found: Sequence[Claim]) -> TextTable:
    """A line a claim with its verdict, then a line a comparison."""
    shown = {1: "+", 0: "=", -1: "−"}
    lines: list[list[str]] = []
    rules: set[int] = set()
    for claim in found:
        rules.add(len(lines))
        lines.append([claim.text, claim.verdict, "" if claim.comparisons else claim.missing])
        lines += [["", shown[one.sign], one.text] for one in claim.comparisons]
    head = [[("claim", 1), ("here", 1), ("the rows that say so", 1)]]
    return TextTable("claims", "The paper's claims, here", head, lines, 3, frozenset(rules), [_NOTE])
