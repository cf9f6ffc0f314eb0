"""The report's answer: which network is better on which benchmark, at which block, by how much, and how sure that is.

Every network is compared with the one with skips of the same optimizer and depth; without such pairs every later
variant with the first. The differences of all pairs and benchmarks are corrected together for their number (Holm): one
decides where its corrected p is below 0.05 and the better network has not collapsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dinoskip.results import EvalResult
from dinoskip.statistics import holm
from visualize.comparison import CROSS_FITTED, HELD_OUT, Score, ScoreDifference, Scores, signed
from visualize.paper.claims import SIGNIFICANT
from visualize.paper.published import SKIP
from visualize.rows import Benchmark, Rows, StudyVariant, collapse, single_blocks, values_of
from visualize.tables import TextTable

BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"
_UNPAIRED = "no records of both on the same images, so the difference is unpaired"
_ONE_RUN = "one training run a network: intervals hold the images' chance, not that of another seed of training"


@dataclass(frozen=True, eq=False)
class AnswerLine:
    """One benchmark: the scores of both variants (None: not run), their difference, what it is measured against.

    ``sign`` is 1 where the first is better, -1 where it is worse, 0 where that is undecided; ``p`` is corrected for
    the number of comparisons. ``untrained`` are the
    same variants at epoch 0, ``trivial`` is the best rule that looks at no image. ``collapsed`` says
    of which network how many blocks have collapsed, and to what.
    """

    benchmark: Benchmark
    first: Score | None
    second: Score | None
    difference: ScoreDifference | None = None
    sign: int = 0
    p: float | None = None
    untrained: tuple[Score | None, Score | None] = (None, None)
    trivial: EvalResult | None = None
    collapsed: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """:data:`BETTER`, :data:`WORSE` or :data:`UNDECIDED`, of the first variant."""
        return {1: BETTER, -1: WORSE}.get(self.sign, UNDECIDED)

    @property
    def certainty(self) -> str:
        """``better, p = 0.012``, or nothing without a difference."""
        if self.difference is None or self.p is None:
            return ""
        return f"{self.verdict}, p {f'= {self.p:.2g}' if self.p >= 0.001 else '< 0.001'}"


@dataclass(frozen=True)
class Answer:
    """Two variants (or one, ``second`` is then "") on every benchmark."""

    first: str
    second: str
    lines: Sequence[AnswerLine]


def answers(variants: Sequence[StudyVariant], scores: Scores, baselines: Sequence[EvalResult] = ()) -> list[Answer]:
    """Every pair of variants that is to be compared, or the one there is; without benchmarks that neither has."""
    compared = []
    for first, second in compared_pairs(variants):
        lines = [_line(first, second, benchmark, scores, baselines) for benchmark in scores.benchmarks]
        compared.append(Answer(first, second, [line for line in lines if line.first or line.second]))
    return _decided(compared)


def compared_pairs(variants: Sequence[StudyVariant]) -> list[tuple[str, str]]:
    """Names of the variants that are compared, the first seed of each network; a single one with ""."""
    shown = _of_one_seed(variants)
    by_role = [
        (first.name, second.name)
        for first in shown
        for second in shown
        if second.role == SKIP != first.role and (first.optimizer, first.depth) == (second.optimizer, second.depth)
    ]
    names = [variant.name for variant in shown]
    return by_role or [(name, names[0]) for name in names[1:]] or [(name, "") for name in names]


def _of_one_seed(variants: Sequence[StudyVariant]) -> list[StudyVariant]:
    """The variants without the later seeds of each network, which :mod:`visualize.report.seeds` summarises."""
    first: dict[str, StudyVariant] = {}
    for variant in variants:
        first.setdefault(variant.family or variant.name, variant)
    return list(first.values())


def _line(first: str, second: str, benchmark: Benchmark, scores: Scores, baselines: Sequence[EvalResult]) -> AnswerLine:
    ends = [scores.last_epoch(name, benchmark) for name in (first, second)]
    now = [scores.chosen(scores.rows(name, benchmark, end)) for name, end in zip((first, second), ends, strict=True)]
    before = [
        scores.chosen(scores.rows(name, benchmark, 0)) if end > 0 else None
        for name, end in zip((first, second), ends, strict=True)
    ]
    trivial = max((row for row in baselines if benchmark.is_of(row)), key=lambda row: row.value, default=None)
    difference = now[0].minus(now[1]) if now[0] and now[1] else None
    gone = [_collapsed(scores.rows(name, benchmark, end)) for name, end in zip((first, second), ends, strict=True)]
    gone = [f"{name}, {benchmark.label}: {said}" for name, said in zip((first, second), gone, strict=True) if said]
    return AnswerLine(
        benchmark, now[0], now[1], difference, untrained=(before[0], before[1]), trivial=trivial, collapsed=gone
    )


def _collapsed(rows: Rows) -> str:
    """``3 of 8 blocks (4, 5, 6) collapsed (60 of 60 graphs complete)``, or nothing."""
    single = single_blocks(values_of(rows))
    said = {block: collapse(rows[str(block)]) for block in single}
    gone = [block for block in single if said[block]]
    if not gone:
        return ""
    return f"{len(gone)} of {len(single)} blocks ({', '.join(map(str, gone))}) {said[gone[0]]}"


def _decided(compared: Sequence[Answer]) -> list[Answer]:
    """The same with the corrected p and the sign of each line."""
    adjusted = iter(holm([line.difference.p for answer in compared for line in answer.lines if line.difference]))
    return [
        replace(answer, lines=[_line_decided(o, next(adjusted)) if o.difference else o for o in answer.lines])
        for answer in compared
    ]


def _line_decided(line: AnswerLine, p: float) -> AnswerLine:
    sign = 0
    if line.difference is not None and p < SIGNIFICANT:
        sign = 1 if line.difference.value > 0 else -1
        winner = line.first if sign > 0 else line.second
        sign = 0 if winner is None or winner.collapsed else sign
    return replace(line, p=p, sign=sign)


def verdict(compared: Sequence[Answer]) -> str:
    """One sentence: of a pair what it is better and worse in, of several pairs in how many benchmarks."""
    pairs = [answer for answer in compared if answer.second]
    lines = [(answer, line) for answer in pairs for line in answer.lines if line.difference]
    if not any(answer.lines for answer in compared):
        return "No measure was run."
    if not pairs:
        return "One network: there is nothing to compare it with."
    if not lines:
        return "The networks share no measure: nothing can be said of a difference."
    if len(pairs) > 1:
        return _counts(lines)
    (answer,) = pairs
    parts = [_part(word, [line for _, line in lines if line.sign == sign]) for sign, word in ((1, BETTER), (-1, WORSE))]
    open_ = [line.benchmark.label for _, line in lines if line.sign == 0]
    if not any(parts):
        return (
            f"No difference between {answer.first} and {answer.second} is certain, after correction for "
            f"{len(lines)} comparison{'s' if len(lines) > 1 else ''}."
        )
    rest = f"; undecided: {'; '.join(open_)}" if open_ else ""
    return f"{answer.first} is {' and '.join(filter(None, parts))}, compared with {answer.second}{rest}."


def _part(word: str, lines: Sequence[AnswerLine]) -> str:
    """``better in mIoU, voc2012 val (+5.2 [+1.1, +9.0])``."""
    return f"{word} in " + "; ".join(f"{line.benchmark.label} ({_text(line)})" for line in lines) if lines else ""


def _counts(lines: Sequence[tuple[Answer, AnswerLine]]) -> str:
    counts = {sign: [pair for pair in lines if pair[1].sign == sign] for sign in (1, -1, 0)}
    parts = []
    for sign, word in ((1, BETTER), (-1, WORSE)):
        where = "; ".join(f"{answer.first}: {line.benchmark.label}" for answer, line in counts[sign][:4])
        where += "; …" if len(counts[sign]) > 4 else ""
        parts.append(f"{word} in {len(counts[sign])}" + (f" ({where})" if where else ""))
    return (
        f"In {len(lines)} comparisons of a network with its counterpart, corrected together, the first is "
        f"{', '.join(parts)}, and {len(counts[0])} are undecided."
    )


def _text(line: AnswerLine) -> str:
    return line.difference.text if line.difference else ""


def cautions(compared: Sequence[Answer], *, seeds: bool = False) -> list[str]:
    """What must be known before a number is believed: collapse, baselines that are not beaten, unpaired differences.

    And that there was one training run a network, unless it was trained with several ``seeds``.
    """
    lines: dict[str, None] = {}
    for answer in compared:
        for line in answer.lines:
            lines |= dict.fromkeys(line.collapsed)
            for score, before in zip((line.first, line.second), line.untrained, strict=True):
                if score is not None:
                    lines |= dict.fromkeys(_of_score(line, score, before))
            if line.difference and not line.difference.paired:
                lines[f"{line.benchmark.label}: {_UNPAIRED}"] = None
    pairs = any(answer.second and answer.lines for answer in compared)
    return [*lines, *([_ONE_RUN] if pairs and not seeds else [])]


def _of_score(line: AnswerLine, score: Score, before: Score | None) -> list[str]:
    about = f"{score.row.model}, {line.benchmark.label}, {score.block}"
    said: list[str] = []
    low = score.value if score.low is None else score.low
    if line.trivial is not None and low <= line.trivial.value and not score.collapsed:
        floor = line.trivial.model.removeprefix("baseline: ")
        said.append(f"{about}: {score.value:.1f} is not clearly above the {floor}, {line.trivial.value:.1f}")
    gain = None if before is None else score.minus(before)
    if before is not None and gain is not None and gain.low <= 0 and not score.collapsed:
        said.append(
            f"{about}: {score.value:.1f} is not clearly above the same network before training, {before.value:.1f}"
        )
    return said


def choices(compared: Sequence[Answer]) -> str:
    """How blocks were chosen, and how much higher choosing on the images shown would have come out."""
    hows: dict[str, dict[str, None]] = {}
    removed: dict[str, None] = {}
    for answer in compared:
        for line in answer.lines:
            for score in filter(None, (line.first, line.second)):
                hows.setdefault(score.how, {})[line.benchmark.label] = None
                if score.how in {CROSS_FITTED, HELD_OUT} and score.optimism >= 0.05:
                    removed[f"{signed(score.optimism)} ({score.row.model}, {line.benchmark.label})"] = None
    text = " ".join(f"Blocks {how} ({'; '.join(labels)})." for how, labels in hows.items() if how)
    if {CROSS_FITTED, HELD_OUT} & set(hows):
        added = f"would have added {'; '.join(removed)}" if removed else "would have added nothing"
        text += f" Optimism removed: choosing it on the images shown {added}."
    return text


def answer_table(compared: Sequence[Answer], *, seeds: bool = False) -> TextTable:
    """A line a pair and benchmark, as text; ``seeds`` as of :func:`cautions`."""
    lines: list[list[str]] = []
    rules: set[int] = set()
    for answer in compared:
        rules.add(len(lines))
        for line in answer.lines:
            names = f"{answer.first} − {answer.second}" if answer.second else answer.first
            cells = [_cell(line.first), _cell(line.second), _text(line), line.certainty]
            untrained = " / ".join(f"{one.value:.1f}" for one in line.untrained if one)
            floor = (
                f"{line.trivial.value:.1f} ({line.trivial.model.removeprefix('baseline: ')})" if line.trivial else ""
            )
            lines.append([names, line.benchmark.label, *cells, untrained, floor])
    columns = ("networks", "measure", "first", "second", "difference", "the first is", "untrained", "trivial")
    notes = [note for note in (verdict(compared), choices(compared), *cautions(compared, seeds=seeds)) if note]
    return TextTable(
        "answer", "Which network is better", [[(c, 1) for c in columns]], lines, 2, frozenset(rules), notes
    )


def _cell(score: Score | None) -> str:
    """``37.5 [32.0, 42.1] b5, best on these images 38.0 b6``, or what it collapsed to."""
    if score is None:
        return "not run"
    interval = "" if score.low is None or score.high is None else f"[{score.low:.1f}, {score.high:.1f}]"
    text = " ".join(filter(None, (f"{score.value:.1f}", interval, score.block)))
    if score.collapsed:
        return f"{score.value:.1f} {score.block}: {score.collapsed}"
    return f"{text}, best on these images {score.best.value:.1f} b{score.best.block}" if score.best else text
