"""A published table with our numbers in it: ours, the paper's and the difference, laid out as printed.

Which of our rows stands in a cell follows one rule, said under each table by :func:`notes`: the first variant of the
study that has the cell's skip connections, initialisation, optimizer and depth; the data set of the cell's kind; the
epoch at the same share of the run; the principal setting (:func:`visualize.rows.principal`); the best single block,
or the study's multiscale combination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dinoskip.decisions.wording import signed
from dinoskip.results import UNKNOWN_EPOCH, EvalResult
from visualize.paper.published import EPOCHS, PublishedNumber, PublishedTable
from visualize.rows import PAPERS, StudyVariant, comparable, principal, setting_note, setting_of, spread
from visualize.tables import NOT_RUN, TextTable, as_csv

PAPER = "“Cutting the Skip: Training Residual-Free Transformers” (ICLR 2026)"


@dataclass(frozen=True)
class ComparedStudy:
    """Our side. ``datasets`` is ``{our name: the paper's}``; ``epochs`` is the length of our runs, 0 if unknown."""

    variants: Sequence[StudyVariant]
    datasets: Mapping[str, str] = field(default_factory=dict)
    epochs: int = 0
    trained_on: str = ""

    def principal(self) -> ComparedStudy:
        """Return the study with rows of the principal settings alone."""
        kept = principal({variant.name: variant.rows for variant in self.variants})
        return replace(self, variants=[replace(variant, rows=kept[variant.name]) for variant in self.variants])

    def paper_name(self, dataset: str) -> str:
        """The paper's name of one of our data sets, "" if it has none."""
        return self.datasets.get(dataset, "")

    def epoch(self, of_paper: int) -> int:
        """Our epoch at the same share of the run as the paper's epoch ``of_paper``."""
        return round(of_paper / EPOCHS * self.epochs)


def find(cell: PublishedNumber, study: ComparedStudy) -> EvalResult | None:
    """The row that stands in a cell; None if there is none. ``study`` holds principal rows only."""
    same = [v for v in study.variants if (v.role, v.optimizer) == (cell.role, cell.optimizer.lower())]
    depth = cell.depth or max((v.depth for v in same), default=0)
    for variant in same:
        rows = [row for row in variant.rows if variant.depth == depth and _fits(row, cell, study)]
        if rows:
            kinds = [row for row in rows if row.dataset == rows[0].dataset]
            return max(kinds, key=lambda row: (row.block.count("+"), row.value, -_number(row.block)))
    return None


def _fits(row: EvalResult, cell: PublishedNumber, study: ComparedStudy) -> bool:
    if not comparable(row) or (row.task, row.metric) != (cell.task, cell.metric):
        return False
    dataset = _dataset(row, study) == cell.dataset
    as_given = row.epoch == UNKNOWN_EPOCH  # weights from elsewhere
    epoch = as_given or row.epoch == study.epoch(cell.epoch) or not study.epochs
    return dataset and epoch and ("+" in row.block) == cell.several


def _dataset(row: EvalResult, study: ComparedStudy) -> str:
    """The paper's name of a row's data set; a classification among 1,000 classes is taken for ImageNet-1k."""
    if row.task == "classify":
        return "ImageNet" if row.classes == 1000 else ""
    return study.paper_name(row.dataset)


def _number(block: str) -> int:
    return int(block) if block.isdigit() else 0


def compared(table: PublishedTable, study: ComparedStudy, baselines: Sequence[EvalResult] = ()) -> TextTable:
    """The table with up to four lines for each printed one: ours, untrained, paper, difference (ours − paper).

    ``untrained`` is the same variant at epoch 0, where the study has it; ``baselines``, rows of rules that look at no
    image, stand below.
    """
    ours = study.principal()
    lines: list[list[str]] = []
    rules: set[int] = set()
    for number, (labels, cells) in enumerate(table.rows):
        if number in table.parts:
            rules.add(len(lines))
        chosen = [find(cell, ours) for cell in cells]
        lines.append([*labels, "ours", *(NOT_RUN if row is None else _shown(row) for row in chosen)])
        begun = [_untrained(cell, row, ours) for cell, row in zip(cells, chosen, strict=True)]
        if any(begun):
            lines.append([*[""] * table.stubs, "untrained", *("" if row is None else _shown(row) for row in begun)])
        lines.append([*[""] * table.stubs, "paper", *("–" if c.paper is None else f"{c.paper:.1f}" for c in cells)])
        gaps = [
            None if row is None or cell.paper is None else round(row.value, 1) - cell.paper
            for row, cell in zip(chosen, cells, strict=True)
        ]
        if any(gap is not None for gap in gaps):
            lines.append([*[""] * table.stubs, "difference", *("" if gap is None else signed(gap) for gap in gaps)])
    below = _below(table, study, baselines)
    rules |= {len(lines)} if below else set()
    lines += below
    head = [[*line[: table.stubs], ("", 1), *line[table.stubs :]] for line in table.head]
    name = table.name.replace(".", "-")
    return TextTable(name, table.title, head, lines, table.stubs + 1, frozenset(rules), notes(table, study))


def _untrained(cell: PublishedNumber, row: EvalResult | None, study: ComparedStudy) -> EvalResult | None:
    """The row of a cell's variant at epoch 0; None if there is none, or ``row`` is of weights from elsewhere."""
    first = None if row is None or row.epoch <= 0 else find(replace(cell, epoch=0), study)
    return first if first is not None and first.epoch == 0 else None


def _below(table: PublishedTable, study: ComparedStudy, baselines: Sequence[EvalResult]) -> list[list[str]]:
    """A line for each baseline: its value in every column of its data set, task and metric."""
    cells = table.rows[0][1]
    lines = []
    for name in dict.fromkeys(row.model for row in baselines):
        baseline_rows = {(row.task, row.metric, _dataset(row, study)): row for row in baselines if row.model == name}
        rows = [baseline_rows.get((cell.task, cell.metric, cell.dataset)) for cell in cells]
        if any(rows):
            lines.append([name, *[""] * table.stubs, *("" if row is None else _shown(row) for row in rows)])
    return lines


def _shown(row: EvalResult) -> str:
    where = f"b{row.block}" if row.block.isdigit() and row.task != "classify" else ""
    return " ".join(filter(None, (f"{row.value:.1f}", spread(row), where)))


def notes(table: PublishedTable, study: ComparedStudy) -> list[str]:
    """The rule by which our rows were chosen, and what they are."""
    ours = study.principal()
    placed = {(labels, n): find(cell, ours) for labels, cells in table.rows for n, cell in enumerate(cells)}
    rows = [row for row in placed.values() if row is not None]
    lines = [f"Paper: {PAPER}, trained on ImageNet-1k. {table.rule}".strip()]
    if not rows:
        return [*lines, f"Ours: no row of this study fits a cell. {_why(table, study)}"]
    used = {name: sorted({row.dataset for row in rows if _dataset(row, study) == name})
            for name in dict.fromkeys(cell.dataset for _, cells in table.rows for cell in cells)}  # fmt: skip
    sets = "; ".join(f"{name} is {', '.join(datasets)}" for name, datasets in used.items() if datasets)
    models = ", ".join(dict.fromkeys(row.model for row in rows))
    about = [f"Ours: variants {models}" + (f", trained on {study.trained_on}" if study.trained_on else "")]
    about += [sets] if sets else []
    about += [f"b9 is block 9; {_epochs(table, study)}"]
    several = list(dict.fromkeys(row.block for row in rows if "+" in row.block))
    about += [f"several blocks: {', '.join(several)}"] if several else []
    lines.append("; ".join(about) + ". [low, high] is the 95 % interval.")
    lines.append("Settings: " + setting_note({"": rows}))
    if left := _left_out(study, rows):
        lines.append(
            f"{left} more rows have other settings of the same measures (rows.html): of several settings the one that "
            f"most variants have is shown, of equals the papers' ({PAPERS})."
        )
    return lines


def _epochs(table: PublishedTable, study: ComparedStudy) -> str:
    if not study.epochs:
        return "the epochs of the weights are not known"
    asked = sorted({cell.epoch for _, cells in table.rows for cell in cells}, reverse=True)
    return ", ".join(f"epoch {epoch} of the paper is our {study.epoch(epoch)} of {study.epochs}" for epoch in asked)


def _why(table: PublishedTable, study: ComparedStudy) -> str:
    """What is missing, where nothing fits."""
    wanted = {cell.dataset for _, cells in table.rows for cell in cells}
    if not {_dataset(row, study) for variant in study.variants for row in variant.rows} & wanted:
        return f"It evaluates none of {', '.join(sorted(wanted))}."
    if not any(variant.role for variant in study.variants):
        return "None of its variants says whether it has skip connections and how it was initialised."
    return "Its variants, epochs or kinds of features are others than the table's."


def _left_out(study: ComparedStudy, used: Sequence[EvalResult]) -> int:
    """How many rows of the same measures have another setting than the one shown."""
    shown = {(row.task, row.metric, row.dataset): setting_of(row) for row in used}
    return sum(
        setting_of(row) != shown[row.task, row.metric, row.dataset]
        for variant in study.variants
        for row in variant.rows
        if comparable(row) and (row.task, row.metric, row.dataset) in shown
    )


def compared_csv(table: PublishedTable, study: ComparedStudy) -> str:
    """One line a printed cell: where it is, ours and what it is of, the paper's number, the difference."""
    ours = study.principal()
    head = ["table", "row", "column", "ours", "deviation", "low", "high", "paper", "difference", "variant", "epoch",
            "block", "dataset", "split", "n", "facet", "norm", "resolution", "protocol"]  # fmt: skip
    columns = TextTable("", "", table.head, ()).columns[table.stubs :]
    lines: list[list[object]] = []
    for labels, cells in table.rows:
        for column, cell in zip(columns, cells, strict=True):
            row = find(cell, ours)
            gap = None if row is None or cell.paper is None else round(row.value - cell.paper, 4)
            about = [NOT_RUN, None, None, None] if row is None else [row.value, row.deviation, row.low, row.high]
            of = [""] * 10 if row is None else [
                row.model, row.epoch, row.block, row.dataset, row.split, row.n, *setting_of(row)
            ]  # fmt: skip
            paper = "" if cell.paper is None else cell.paper
            place = [table.name, " ".join(filter(None, labels)), column]
            lines.append(
                [*place, *("" if cell is None else cell for cell in about), paper, "" if gap is None else gap, *of]
            )
    return as_csv(head, lines)
