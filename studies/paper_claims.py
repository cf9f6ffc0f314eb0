# Frozen: rows docs/results/claims.md, commit 631b3693, 2026-11-26.
"""The verdicts on the paper's claims, of its own published numbers or of studies with several seeds of training.

``python -m studies.paper_claims`` takes the published numbers for the study and prints a table, of which
docs/report.md has a part; with ``--all`` every comparison.

``python -m studies.paper_claims --study NAME ROWS.csv ... [--study NAME ROWS.csv ...]`` reads result rows, which
name a network LABEL-OPTIMIZER-sSEED, and prints a verdict a claim: those of one study are pooled. LABEL is ``skip``,
``default``, ``paper`` (skipless networks), or any other skipless start, which is judged in the paper's place.
Networks with two or more seeds are compared by the report's rule (:mod:`dinoskip.results.estimates`), Holm-corrected
for all comparisons. docs/results/claims.md was made so.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.pages import read_csv, result_row
from dinoskip.decisions.comparing import compared_pair
from dinoskip.decisions.wording import signed
from dinoskip.errors import DataError, DinoskipError
from dinoskip.results.estimates import SIGNIFICANT
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import holm
from dinoskip_papers.claims import claims, claims_grid, pairs_of
from dinoskip_papers.compare import ComparedStudy
from dinoskip_papers.rules import RULES, Rule
from studies.paper_as_study import HALF_WIDTHS, paper_as_study
from visualize.comparison import Scores
from visualize.rows import DEFAULT, INITIALISED, SKIP, StudyVariant
from visualize.tables import markdown, markdown_rows, mean_deviation

ROLES = {"skip": SKIP, "default": DEFAULT, "paper": INITIALISED}
DATASETS = {"voc2012": "VOC2012", "ade20k": "ADE20K", "coco_stuff": "COCO-Stuff", "coco20k": "COCO20k"}
AGREES, DISAGREES, MIXED, OPEN = "agrees", "disagrees", "agrees in some, disagrees in others", "cannot be told"
_NETWORK = re.compile(r"(?P<label>\w+)-(?P<optimizer>\w+)-s(?P<seed>\d+)")


def verdict_table() -> list[str]:
    """The lines of the table, as Markdown: of each claim its verdict, and how many comparisons say so."""
    study = paper_as_study()
    lines = []
    for claim in claims(study, Scores({variant.name: variant.rows for variant in study.variants})):
        signs = [comparison.sign for comparison in claim.comparisons]
        words = ((1, "for"), (-1, "against"), (0, "undecided"))
        counts = ", ".join(f"{signs.count(sign)} {word}" for sign, word in words if sign in signs)
        lines.append([claim.text, f"{claim.verdict}: {counts}" if counts else claim.verdict])
    return markdown_rows(["claim", "verdict: comparisons"], lines, 2)


# --- over seeds -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeedsComparison:
    """Two networks of a study on one measure, in percent, a value a seed: ``high`` should be above ``low - margin``.

    ``p`` is of the difference being ``-margin``, or the higher one not above its own start; nan for a single seed.
    """

    claim: str
    start: str
    study: str
    measure: str
    names: tuple[str, str]
    high: tuple[float, ...]
    low: tuple[float, ...]
    margin: float
    dead: tuple[bool, bool]
    p: float
    counts: bool = False  # after the correction

    @property
    def difference(self) -> float:
        """Difference of the two means over seeds, in percent points."""
        return sum(self.high) / len(self.high) - sum(self.low) / len(self.low)

    @property
    def direction(self) -> int:
        """1 for the claim, -1 against it, 0 if neither or if a dead network is the higher one."""
        above = self.difference + self.margin
        higher = self.dead[0 if above > 0 else 1]
        return 0 if higher or abs(above) < 1e-9 else int(math.copysign(1, above))

    @property
    def seeds(self) -> int:
        """Number of seeds of the side that has fewer."""
        return min(len(self.high), len(self.low))


def read_networks(paths: Sequence[Path]) -> list[EvalResult]:
    """Rows of networks with seeds from CSV files, each number once; :class:`DataError` where two files disagree."""
    kept: dict[EvalResult, EvalResult] = {}
    for path in paths:
        for entry in read_csv(path):
            if not _NETWORK.fullmatch(entry.get("model") or ""):
                continue
            try:
                row = result_row(entry)
            except (TypeError, ValueError) as error:
                raise DataError(f"{path}: {error}", "rows.csv of a study, or a table with its columns") from None
            key = replace(row, value=0.0, version="", weights="", initialisation="")
            if kept.setdefault(key, row).value != row.value:
                measured = f"{row.metric} of {row.model}, {row.dataset}, block {row.block}, epoch {row.epoch}"
                raise DataError(f"{path}: {measured} is {row.value:g}, in a file before it {kept[key].value:g}")
    if not kept:
        raise DataError(f"{', '.join(map(str, paths))}: no rows of networks named LABEL-OPTIMIZER-sSEED")
    return list(kept.values())


def family(name: str) -> str:
    """A network's name without its seed."""
    return name.rpartition("-s")[0]


def compared(study: str, rows: Sequence[EvalResult]) -> Iterator[SeedsComparison]:
    """Every comparison that a study has of every claim, for each skipless start in the paper's place."""
    names = dict.fromkeys(row.model for row in rows)
    labels = {name: name.partition("-")[0] for name in names}
    starts = [label for label in dict.fromkeys(labels.values()) if label not in {"skip", "default"}]
    for start in starts:
        variants = []
        for name in names:
            role = INITIALISED if labels[name] == start else ROLES.get(labels[name], "")
            if role and (role != INITIALISED or labels[name] == start):
                of_model = [row for row in rows if row.model == name]
                seed = int(name.rpartition("-s")[2])
                about = of_model[0].optimizer, of_model[0].depth, of_model
                variants.append(StudyVariant(name, role, *about, family=family(name), seed=seed))
        ours = ComparedStudy(variants, DATASETS, max(row.epoch for row in rows)).principal()
        scores = Scores({variant.name: variant.rows for variant in ours.variants})
        for rule in RULES:
            for pair in _of_rule(rule, ours, scores):
                if start == "paper" or any(name.startswith(f"{start}-") for name in pair.names):
                    yield replace(pair, start=start, study=study)


def _of_rule(rule: Rule, study: ComparedStudy, scores: Scores) -> Iterator[SeedsComparison]:
    """The pairs of a rule."""
    for benchmark, *sides in pairs_of(rule, study, scores):
        names = [family(side.now[0].row.model) for side in sides]
        kinds = [{score.how == "the last block" for score in side.now} for side in sides]
        for at, side in enumerate(sides):
            names[at] += ", several blocks" if "+" in side.now[0].row.block else ""
            names[at] += f", {side.now[0].when}" if side.now[0].when else ""
            if kinds[0] != kinds[1]:
                names[at] += ", last block" if True in kinds[at] else ", earlier block"
        high, low = (tuple(score.value for score in side.now) for side in sides)
        dead = tuple(side.is_dead for side in sides)
        pair = compared_pair(sides[0], sides[1], rule.margin) if min(len(high), len(low)) > 1 else None
        yield SeedsComparison(
            rule.text, "", "", benchmark.label, (names[0], names[1]), high, low, rule.margin,
            (dead[0], dead[1]), pair.tested.p if pair else math.nan,
        )  # fmt: skip


def corrected(pairs: Sequence[SeedsComparison]) -> list[SeedsComparison]:
    """Replace each comparison's p by Holm's, and say which comparisons then count."""
    tested = [pair.p for pair in pairs if not math.isnan(pair.p)]
    adjusted = iter(holm(tested))
    with_p = [pair if math.isnan(pair.p) else replace(pair, p=next(adjusted)) for pair in pairs]
    return [replace(pair, counts=bool(pair.p < SIGNIFICANT and pair.direction)) for pair in with_p]


def verdict(pairs: Sequence[SeedsComparison]) -> str:
    """The verdict on a claim by its comparisons: the word, the seeds, what was tested, what points its way."""
    if not pairs:
        return "–"
    signs = [pair.direction for pair in pairs if pair.counts]
    word = {frozenset({1}): AGREES, frozenset({-1}): DISAGREES, frozenset(): OPEN}.get(frozenset(signs), MIXED)
    seeds = sorted({pair.seeds for pair in pairs})
    many = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seed" + "s" * (seeds[0] > 1)
    tested = sum(not math.isnan(pair.p) for pair in pairs)
    counted = f"; {tested} tested: {signs.count(1)} for, {signs.count(-1)} against" if tested else ""
    way = sum(pair.direction > 0 for pair in pairs)
    return f"{word} ({many}){counted}; {way} of {len(pairs)} differences point its way"


_TESTED = (
    "were tested: those of several seeds of both networks, where neither block nor learning rate was chosen on the "
    "images shown."
)


def claims_page(studies: Mapping[str, Sequence[EvalResult]]) -> list[str]:
    """The lines of the verdicts, of what could not be judged and of every comparison, as Markdown."""
    comparisons = corrected([pair for name, rows in studies.items() for pair in compared(name, rows)])
    starts = list(dict.fromkeys(pair.start for pair in comparisons))
    judged = {
        rule.text: {
            start: [pair for pair in comparisons if (pair.claim, pair.start) == (rule.text, start)] for start in starts
        }
        for rule in RULES
    }
    run = {text: pairs for text, pairs in judged.items() if any(pairs.values())}
    tested = sum(not math.isnan(pair.p) for pair in comparisons)
    lines = ["## Verdicts", ""]
    head = ["claim", *(f"start: {start}" for start in starts)]
    lines += markdown_rows(head, [[text, *map(verdict, pairs.values())] for text, pairs in run.items()], len(head))
    lines += ["", f"{len(comparisons)} comparisons; {tested} {_TESTED}", ""]
    lines += ["## Not judged, for nothing was run", ""]
    lines += [f"- {rule.text}: {rule.missing}" for rule in RULES if rule.text not in run]
    lines += ["- PCA pictures of skipless networks are cleaner (figure 4): rows have no pictures", ""]
    lines += ["## Every comparison"]
    for text, pairs in run.items():
        lines += ["", f"### {text}", ""]
        lines += markdown_rows(_COLUMNS, [_line(pair) for each in pairs.values() for pair in each], 3)
    return lines


_COLUMNS = ("study", "networks", "measure", "should be higher", "than", "difference", "p", "says")


def _line(pair: SeedsComparison) -> list[str]:
    said = {1: "for", -1: "against", 0: "network dead" if any(pair.dead) else "equal"}[pair.direction]
    return [
        pair.study, " − ".join(pair.names), pair.measure, mean_deviation(pair.high), mean_deviation(pair.low),
        signed(pair.difference), "–" if math.isnan(pair.p) else f"{pair.p:.2g}",
        said if pair.counts or not pair.direction else f"points {said}",
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every comparison of the published numbers")
    parser.add_argument("--study", nargs="+", action="append", metavar=("NAME", "ROWS.csv"), help="judge these rows")
    args = parser.parse_args(arguments)
    if args.study:
        try:
            studies = {name: read_networks([Path(path) for path in paths]) for name, *paths in args.study}
        except (DinoskipError, OSError) as error:
            parser.exit(3, f"{error}\n")
        print("\n".join(claims_page(studies)))
        return
    if args.all:
        study = paper_as_study()
        scores = Scores({variant.name: variant.rows for variant in study.variants})
        print(markdown(claims_grid(claims(study, scores))))
        return
    print("half a 95 % interval, in percent points, assumed:", HALF_WIDTHS)
    print("\n".join(verdict_table()))


if __name__ == "__main__":
    main()
