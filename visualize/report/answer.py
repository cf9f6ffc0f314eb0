"""The report's answer: which network is better on which benchmark, at which block, by how much, and how sure that is.

Every network, all its seeds of training together, is compared with the one with skips of the same optimizer and depth;
without such pairs every later one with the first. One is better where the difference **and** its gain over its own
start hold, corrected for all lines of the page (:mod:`dinoskip.decisions.comparing`), and the measure separates
networks at all (:mod:`visualize.report.separation`); of one training each it is called higher. Lines that read the same
numbers at several places, as a skipless block's output and its MLP branch are, count as one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from dinoskip.decisions.choosing import BY_CROSS_FITTING, BY_HELD_OUT, TOO_FEW, Score
from dinoskip.decisions.comparing import (
    BETTER,
    HIGHER,
    LOWER,
    ONE_EACH,
    UNDECIDED,
    WORSE,
    ComparedPair,
    NetworkScores,
    Verdict,
    compared_pair,
    decide,
    unresolved_rates,
)
from dinoskip.decisions.failures import failed_cuts
from dinoskip.decisions.wording import ROUNDED, points, signed
from dinoskip.results.estimates import Difference
from dinoskip.results.rows import EvalResult
from visualize.comparison import OWN_BEST, Scores
from visualize.rows import REMEDY, SKIP, Benchmark, Rows, StudyVariant, families, single_blocks, values_of
from visualize.tables import mean_deviation

MOST = 3  # benchmarks whose values a first screen has room for; the table has all
NO_SCORE = "No ranking: there is no score, since no task was asked for or none has run."
NO_LABELS = "No ranking: the images have no labels, so there is no score."
WORDS = (BETTER, WORSE, HIGHER, LOWER)
"""The words of a verdict, in the order of a sentence."""
SAME_WEIGHTS = "the same weights"


@dataclass(frozen=True, eq=False)
class Measured(NetworkScores):
    """A network on one benchmark, with its scores at the ``last`` block.

    ``failed`` says at how many blocks the method did, and how. ``read`` is what every block has, before training and
    after: read points of the same numbers are one.
    """

    last: tuple[Score, ...] = ()
    failed: str = ""
    read: Hashable = ()

    @property
    def failed_there(self) -> str:
        """The failure of the method at the chosen block, of the first seed where it failed; "" without one."""
        return next(filter(None, (score.failed for score in self.now)), "")

    @property
    def blocks_said(self) -> str:
        """``block 7``, of several seeds ``blocks 7, 8``, where halves of the images chose ``blocks 2, 10
        (cross-fitted)``; several blocks that are read together are one (``3+6+9``).
        """
        numbers = list(dict.fromkeys(re.sub(r"\bb(?=[0-9])", "", self.blocks).replace("/", " ").split()))
        fitted = " (cross-fitted)" if "/" in self.blocks else ""
        return f"block{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}{fitted}"

    @property
    def parts(self) -> dict[str, str]:
        """Value, interval (over seeds: deviation) or how the method failed, block, best block on the images shown."""
        first = self.now[0]
        if len(self.now) > 1:
            value, _, deviation = mean_deviation([score.value for score in self.now]).partition(" ")
            return {"value": value, "interval": first.failed or deviation, "block": self.blocks, "best": ""}
        interval = f"[{first.low:.1f}, {first.high:.1f}]" if first.low is not None and first.high is not None else ""
        interval = interval or first.row.no_interval
        top = "" if first.best is None else f"best on these images {first.best.value:.1f} b{first.best.block}"
        return {"value": f"{first.value:.1f}", "interval": first.failed or interval, "block": self.blocks, "best": top}


@dataclass(frozen=True, eq=False)
class AnswerLine:
    """One benchmark: both networks (None: not run), how they compare, what that is measured against.

    ``pair`` and ``decision`` are None without two networks, or where nothing says how sure the difference is.
    ``trivial`` is the best rule that looks at no image.
    """

    benchmark: Benchmark
    first: Measured | None
    second: Measured | None
    pair: ComparedPair | None = None
    decision: Verdict | None = None
    trivial: EvalResult | None = None

    @property
    def difference(self) -> Difference | None:
        """Difference between the two networks in percentage points; None without a pair."""
        return self.pair.judgement.difference.in_points if self.pair else None

    @property
    def sign(self) -> int:
        """1 where the first is better, or of one training each higher, -1 where it is worse, 0 where undecided."""
        return self.decision.sign if self.decision else 0

    @property
    def p(self) -> float | None:
        """p, corrected for the number of comparisons; nan where nothing was tested, None without a pair."""
        return self.decision.p if self.decision else None

    @property
    def why(self) -> str:
        """The reason, other than p, for which the comparison is undecided; "" without one."""
        return self.decision.why if self.decision else ""

    @property
    def same_weights(self) -> bool:
        """Whether both networks have the same weights and all the same numbers."""
        if self.first is None or self.second is None or self.first.read != self.second.read:
            return False
        first, second = ([score.row.weights for score in side.now] for side in (self.first, self.second))
        return first == second and all(first)

    @property
    def unresolved(self) -> str:
        """``rate of skip unresolved``, of the networks whose learning rate is not; nothing where all are."""
        return unresolved_rates([side for side in (self.first, self.second) if side])

    @property
    def verdict(self) -> str:
        """:data:`BETTER` or :data:`WORSE` for the first network, :data:`HIGHER` or :data:`LOWER` with one training
        each, else :data:`UNDECIDED`.
        """
        return self.decision.word if self.decision else UNDECIDED

    @property
    def said(self) -> str:
        """The verdict with all that belongs to it: ``higher, one training each``."""
        return self.decision.said if self.decision else UNDECIDED

    @property
    def certainty(self) -> str:
        """``better, p = 0.012``, or why it is undecided; nothing without a difference."""
        return self.decision.certainty if self.decision else ""


@dataclass(frozen=True)
class Answer:
    """Two networks (or one, ``second`` is then "") on every benchmark."""

    first: str
    second: str
    lines: Sequence[AnswerLine]


def answers(
    variants: Sequence[StudyVariant],
    scores: Scores,
    baselines: Sequence[EvalResult] = (),
    speechless: Mapping[Benchmark, str] | None = None,
) -> list[Answer]:
    """Every pair of networks that is to be compared, or the one there is; without benchmarks that neither has.

    ``speechless`` are measures that cannot separate networks, and why: they decide nothing.
    """
    networks = families(variants)
    compared = [_answer(networks, names, scores, baselines) for names in compared_pairs(variants)]
    return _decided(compared, speechless or {})


def _answer(
    networks: Mapping[str, Sequence[StudyVariant]],
    names: tuple[str, str],
    scores: Scores,
    baselines: Sequence[EvalResult],
) -> Answer:
    lines = [_line(networks, names, benchmark, scores, baselines) for benchmark in scores.benchmarks]
    return Answer(*names, [line for line in lines if line.first or line.second])


def unpaired(variants: Sequence[StudyVariant], scores: Scores, baselines: Sequence[EvalResult] = ()) -> list[Answer]:
    """Networks that are in none of several compared pairs, as single ones; nothing where there are no pairs."""
    pairs = [pair for pair in compared_pairs(variants) if pair[1]]
    networks, compared = families(variants), {name for pair in pairs for name in pair}
    alone = [name for name in networks if pairs and name not in compared]
    return [_answer(networks, (name, ""), scores, baselines) for name in alone]


def compared_pairs(variants: Sequence[StudyVariant]) -> list[tuple[str, str]]:
    """Names of the networks that are compared; a single one with ""."""
    networks = {name: seeds[0] for name, seeds in families(variants).items()}
    by_role = [
        (first, second)
        for first, run in networks.items()
        for second, other in networks.items()
        if other.role == SKIP != run.role and (run.optimizer, run.depth) == (other.optimizer, other.depth)
    ]
    names = list(networks)
    return by_role or [(name, names[0]) for name in names[1:]] or [(name, "") for name in names]


def measured(name: str, variants: Sequence[StudyVariant], benchmark: Benchmark, scores: Scores) -> Measured | None:
    """Collect all seeds of a network on a benchmark; None if no seed has it."""
    ends = {variant.name: scores.last_epoch(variant.name, benchmark) for variant in variants}
    rows = {name: scores.rows(name, benchmark, end) for name, end in ends.items()}
    now = {name: score for name in ends if (score := scores.chosen(rows[name])) is not None}
    if not now:
        return None
    before = [scores.chosen(scores.rows(name, benchmark, 0)) if ends[name] > 0 else None for name in now]
    failed = next(filter(None, (_failed(rows[name]) for name in now)), "")
    return Measured(
        name,
        tuple(now.values()),
        tuple(score for score in before if score) if all(before) else (),
        next(filter(None, (variant.unresolved for variant in variants)), ""),
        tuple(score for name in now if (score := scores.last(rows[name]))),
        f"{name}, {benchmark.label}: {failed}; {REMEDY}" if failed else "",
        tuple(_numbers(scores.rows(name, benchmark, epoch)) for name in now for epoch in {0, ends[name]}),
    )


def _numbers(rows: Rows) -> Hashable:
    """Return the numbers that tell read points apart: every block's value and held-out value, rounded."""
    return frozenset(
        (row.block, round(row.value, 6), None if row.heldout is None else round(row.heldout, 6))
        for row in rows.values()
    )


def _line(
    networks: Mapping[str, Sequence[StudyVariant]],
    names: tuple[str, str],
    benchmark: Benchmark,
    scores: Scores,
    baselines: Sequence[EvalResult],
) -> AnswerLine:
    first, second = (measured(name, networks.get(name, ()), benchmark, scores) for name in names)
    trivial = benchmark.baseline(baselines)
    pair = compared_pair(first, second) if first and second else None
    return AnswerLine(benchmark, first, second, pair, trivial=trivial)


def _failed(rows: Rows) -> str:
    """``3 of 8 blocks (4, 5, 6): affinity graph degenerate at τ = 0.2 (60 of 60 images)``, or nothing."""
    single = single_blocks(values_of(rows))
    said = {block: failed_cuts(rows[str(block)]) for block in single}
    gone = [block for block in single if said[block]]
    if not gone:
        return ""
    return f"{len(gone)} of {len(single)} blocks ({', '.join(map(str, gone))}): {said[gone[0]]}"


def _decided(compared: Sequence[Answer], speechless: Mapping[Benchmark, str]) -> list[Answer]:
    """Set the decision of each line; lines of the same numbers are corrected as one."""
    lines = [(answer, line, line.pair) for answer in compared for line in answer.lines if line.pair]
    keys = [_comparison(answer, line) for answer, line, _ in lines]
    silent = [speechless.get(line.benchmark, "") for _, line, _ in lines]
    found = iter(decide([pair for _, _, pair in lines], keys, silent))
    return [
        replace(answer, lines=[_line_decided(line, next(found)) if line.pair else line for line in answer.lines])
        for answer in compared
    ]


def _comparison(answer: Answer, line: AnswerLine) -> Hashable:
    """Return a line's comparison: the networks, the measure without the read point, and all numbers that it reads."""
    reads = tuple(side.read for side in (line.first, line.second) if side)
    return answer.first, answer.second, replace(line.benchmark, setting=without_place(line.benchmark.setting)), reads


def without_place(setting: str) -> str:
    """A benchmark's setting without where blocks are read."""
    return ", ".join(part for part in setting.split(", ") if not part.startswith("read at ") and part != OWN_BEST)


def _line_decided(line: AnswerLine, decision: Verdict) -> AnswerLine:
    if line.same_weights:
        decision = replace(decision, sign=0, why=SAME_WEIGHTS)
    return replace(line, decision=decision)


def verdict(compared: Sequence[Answer], every: Sequence[Answer] = ()) -> str:
    """One sentence: of a pair what it is better and worse in, of several pairs in how many benchmarks.

    ``every`` has the lines, too, of inconclusive metrics; where there are no others nothing is said here, for
    :func:`visualize.report.first_sentence.inconclusive_said` says why.
    """
    pairs = [answer for answer in compared if answer.second]
    lines = [(answer, line) for answer in pairs for line in answer.lines if line.difference]
    if not any(answer.lines for answer in compared):
        silent = any(answer.lines for answer in every)
        return "" if silent else NO_SCORE
    if not pairs:
        return " ".join(map(_of_one, compared))
    if not lines:
        if any(line.first and line.second for answer in pairs for line in answer.lines):
            return "No ranking: nothing says how sure the differences are."
        return "No ranking: the networks were not scored on the same metric."
    if len(pairs) > 1:
        return _of_pairs(pairs)
    (answer,) = pairs
    if all(line.why == SAME_WEIGHTS for _, line in lines):
        return f"“{answer.first}” and “{answer.second}” have {SAME_WEIGHTS}."
    if why := next(filter(None, (line.unresolved for _, line in lines)), ""):
        return f"No verdict between “{answer.first}” and “{answer.second}”: {why}."
    parts = [_part(word, [line for _, line in lines if line.verdict == word]) for word in WORDS]
    open_ = [line.benchmark.label for _, line in lines if line.sign == 0]
    if not any(parts):
        said = [_values(line) for _, line in lines[:MOST]]
        more = f"; {len(lines) - MOST} more" if len(lines) > MOST else ""
        names = f"“{answer.first}” and “{answer.second}”"
        why = _reasons(lines) or " (no difference is significant)"
        return f"No ranking of {names}{why}: {'; '.join(said)}{more}."
    rest = f"; undecided: {'; '.join(open_)}" if open_ else ""
    return f"“{answer.first}” is {' and '.join(filter(None, parts))}, compared with “{answer.second}”{rest}."


def _reasons(lines: Sequence[tuple[Answer, AnswerLine]]) -> str:
    """`` (why each line is undecided)``, each reason once."""
    reasons = dict.fromkeys(line.why for _, line in lines if line.why)
    return f" ({'; '.join(reasons)})" if reasons else ""


def _values(line: AnswerLine) -> str:
    """``mIoU, voc val 20.0 and 12.1``; of last blocks below others: ``... at the last block (at the best one ...)``."""
    sides = [side for side in (line.first, line.second) if side]
    scores = [score for side in sides for score in side.now]
    said = f"{line.benchmark.label} {' and '.join(f'{side.value:.1f}' for side in sides)}"
    several = len(scores) != len(sides)  # seeds, whose best blocks have no mean
    if several or any(s.how != TOO_FEW or s.best is None for s in scores) or all(s.optimism < ROUNDED for s in scores):
        return said
    best = " and ".join(f"{score.best.value:.1f}" for score in scores if score.best)
    return f"{said} at the last block (at the best one {best})"


def _of_one(answer: Answer) -> str:
    """``small: mIoU, voc val 40.0 at block 11, above the best baseline (colours, 4.2). There is no second ...``"""
    said = [
        f"{line.benchmark.label}{images_said([line.first])} {line.first.value:.1f} at {line.first.blocks_said}"
        f"{_floor_said(line)}"
        for line in answer.lines
        if line.first is not None
    ]
    return f"{answer.first}: {'; '.join(said)}. There is no second network to compare it with."


def images_said(sides: Sequence[Measured]) -> str:
    """`` (60 images)``, where all networks were scored on as many; else nothing."""
    counts = {score.row.n for side in sides for score in side.now}
    return f" ({counts.pop():,} images)" if len(counts) == 1 else ""


def _floor_said(line: AnswerLine) -> str:
    """``, above the best baseline (full image, 22.1)``, by at least what rounding hides, else ``not above``."""
    if line.first is None or line.trivial is None:
        return ""
    above = "below" if line.first.lowest else "above"
    word = above if beats(line.first.value, line.trivial.value, line.first.lowest) else f"not {above}"
    return f", {word} the best baseline ({line.trivial.rule}, {line.trivial.value:.1f})"


def beats(value: float, floor: float, lowest: bool) -> bool:
    """Whether a value is above a baseline by more than rounding, or below it where the lower one is better."""
    return (floor - value if lowest else value - floor) >= ROUNDED


def dependences(compared: Sequence[Answer]) -> list[str]:
    """Measures in which the sign of a difference depends on where blocks are read: a sentence for each pair."""
    sentences = []
    for answer in compared:
        measures: dict[Benchmark, list[AnswerLine]] = {}
        for line in answer.lines:
            if line.difference:
                measures.setdefault(replace(line.benchmark, setting=""), []).append(line)
        for benchmark, lines in measures.items():
            values = [line.difference.value for line in lines if line.difference]
            if min(values) <= -ROUNDED and max(values) >= ROUNDED:
                said = (f"{line.benchmark.setting} {points(line.difference)} {line.said}" for line in lines)
                about = f"{benchmark.label}: the sign of {answer.first} − {answer.second}"
                sentences.append(f"{about} depends on where blocks are read: {'; '.join(said)}.")
    return sentences


def _part(word: str, lines: Sequence[AnswerLine]) -> str:
    """``better in mIoU, voc2012 val (+5.2 [+1.1, +9.0])``, ``higher, one training each, in ...``."""
    said = [f"{line.benchmark.label} ({points(line.difference)})" for line in lines]
    return f"{_with_trainings(word)} in {'; '.join(said)}" if said else ""


def _with_trainings(word: str) -> str:
    """``better``; ``higher, one training each,``."""
    return f"{word}, {ONE_EACH}," if word in {HIGHER, LOWER} else word


def _of_pairs(pairs: Sequence[Answer]) -> str:
    """A sentence for each network that others are compared with: which are better or worse, on how many measures."""
    references: dict[str, list[Answer]] = {}
    for pair in pairs:
        if any(line.difference for line in pair.lines):
            references.setdefault(pair.second, []).append(pair)
    return " ".join(_of_reference(second, outcomes) for second, outcomes in references.items())


def _of_reference(second: str, pairs: Sequence[Answer]) -> str:
    """``Compared with “skip”: “default” is worse on 3 of 6 metrics; “paper” does not differ significantly.``"""
    said: dict[str, list[str]] = {}
    for pair in pairs:
        lines = [line for line in pair.lines if line.difference]
        counts = [(word, sum(line.verdict == word for line in lines)) for word in WORDS]
        words = " and ".join(f"{_with_trainings(word)} on {count}" for word, count in counts if count)
        if words:
            outcome = f"is {words} of {len(lines)} metrics"
        elif all(line.why == SAME_WEIGHTS for line in lines):
            outcome = f"has {SAME_WEIGHTS}"
        elif any(line.unresolved for line in lines):
            outcome = "gets no verdict, a learning rate being unresolved"
        else:
            outcome = "does not differ significantly"
        said.setdefault(outcome, []).append(f"“{pair.first}”")
    parts = [
        _with_subject(names, outcome)
        for outcome, names in sorted(said.items(), key=lambda entry: "significantly" in entry[0])
    ]
    return f"Compared with “{second}”: {'; '.join(parts)}."


def _with_subject(names: Sequence[str], outcome: str) -> str:
    if len(names) == 1:
        return f"{names[0]} {outcome}"
    plural = {"is": "are each", "has": "have", "gets": "get", "does": "do"}
    verb, _, rest = outcome.partition(" ")
    return f"{', '.join(names[:-1])} and {names[-1]} {plural.get(verb, verb)} {rest}"


def choices(compared: Sequence[Answer]) -> str:
    """Return how blocks were chosen, and how much higher the scores would be with blocks chosen on the images shown."""
    hows: dict[str, dict[str, None]] = {}
    removed: dict[str, None] = {}
    for answer in compared:
        for line in answer.lines:
            for score in (score for side in (line.first, line.second) if side for score in side.now):
                hows.setdefault(score.how, {})[line.benchmark.label] = None
                if score.how in {BY_CROSS_FITTING, BY_HELD_OUT} and score.optimism >= 0.05:  # less prints as 0.0
                    removed[f"{signed(score.optimism)} ({score.row.model}, {line.benchmark.label})"] = None
    text = " ".join(f"Blocks {how} ({'; '.join(labels)})." for how, labels in hows.items() if how)
    if {BY_CROSS_FITTING, BY_HELD_OUT} & set(hows):
        if removed:
            text += f" Choosing the block on these images instead would have raised the score: {'; '.join(removed)}."
        else:
            text += " Choosing the block on these images instead would not have changed the score."
    return text
