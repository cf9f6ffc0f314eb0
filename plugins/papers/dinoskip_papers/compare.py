"""A published table with our numbers in it: ours, the paper's and the difference, laid out as printed.

Which of our rows stand in a cell follows one rule, said under each table by :func:`notes`: the network of the study
that has the cell's skip connections, initialisation, optimizer and depth, all its seeds of training together; the data
set of the cell's kind; the epoch at the same share of the run; the principal setting
(:func:`visualize.rows.principal`); the best single block of each seed, or the study's multiscale combination. Where two
networks have rows for one cell, neither stands in it, and the table names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult
from dinoskip_papers.cells import Contested, OurNumber, Ours, OwnDifferences, number
from dinoskip_papers.layout import ComparedTable, TableCell, TableLine
from dinoskip_papers.published import EPOCHS, PublishedNumber, PublishedTable, networks_for
from visualize.rows import PAPERS, SKIP, StudyVariant, comparable, principal, setting_note, setting_of, spread

PAPER = "“Cutting the Skip: Training Residual-Free Transformers” (ICLR 2026)"

INTERVALS = (
    "With several training seeds, our value is their mean ± standard deviation with the 95 % interval of the mean over "
    "seeds (Student's), and the difference is that of the mean. With one seed, [low, high] is the 95 % interval over "
    "images, which says nothing about other seeds. A difference between two networks of ours has its own interval, "
    "paired over images if both have per-image scores, else unpaired; it is not corrected for the number of cells."
)


@dataclass(frozen=True)
class ComparedStudy:
    """Our side. ``datasets`` is ``{our name: the paper's}``; ``epochs`` is the length of our runs, 0 if unknown.

    ``records`` are what images contribute to the rows that have them: differences of our own are paired by them.
    """

    variants: Sequence[StudyVariant]
    datasets: Mapping[str, str] = field(default_factory=dict)
    epochs: int = 0
    trained_on: str = ""
    records: Mapping[EvalResult, ImageRecords] = field(default_factory=dict)

    @cached_property
    def own(self) -> OwnDifferences:
        """Differences between networks of the study."""
        return OwnDifferences({variant.name: variant.rows for variant in self.variants}, self.records)

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


def find(cell: PublishedNumber, study: ComparedStudy) -> Ours:
    """Return our number for a cell, or the networks that contest it; None if there is nothing.

    ``study`` holds principal rows only.
    """
    found: dict[str, OurNumber] = {}
    for name, seeds in networks_for(cell, study.variants).items():
        if rows := [row for run in seeds if (row := _row_of(run, cell, study)) is not None]:
            found[name] = OurNumber(name, tuple(row.value for row in rows), tuple(rows), len(seeds))
    return Contested(tuple(found)) if len(found) > 1 else next(iter(found.values()), None)


def _row_of(run: StudyVariant, cell: PublishedNumber, study: ComparedStudy) -> EvalResult | None:
    """The row of one seed."""
    rows = [row for row in run.rows if _fits(row, cell, study)]
    kinds = [row for row in rows if row.dataset == rows[0].dataset]
    return max(kinds, key=lambda row: (row.block.count("+"), row.value, -_number(row.block)), default=None)


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


def compared(table: PublishedTable, study: ComparedStudy, baselines: Sequence[EvalResult] = ()) -> ComparedTable:
    """The table with up to five lines for each printed one: ours, untrained, paper, difference (ours − paper), and how
    far ours is above our own network with skips.

    ``untrained`` is the same network at epoch 0, where the study has it; ``baselines``, rows of rules that look at no
    image, stand below.
    """
    ours = study.principal()
    lines = [TableLine(labels, [_cell(cell, ours) for cell in cells], "ours − skip") for labels, cells in table.rows]
    below = _below(table, study, baselines)
    return ComparedTable(
        table.name, table.title, table.head, table.stubs, lines, table.parts, below, notes(table, study)
    )


def filled(table: PublishedTable, study: ComparedStudy) -> int:
    """Return the number of its cells that have a number of ours."""
    ours = study.principal()
    return sum(number(find(cell, ours)) is not None for _, cells in table.rows for cell in cells)


def _cell(cell: PublishedNumber, study: ComparedStudy) -> TableCell:
    ours = find(cell, study)
    apart = None
    if cell.role != SKIP:
        skip = replace(cell, role=SKIP, epoch=EPOCHS)
        apart = study.own.of(ours, find(replace(skip, depth=None), study))
    return TableCell(cell.paper, ours, _untrained(cell, ours, study), apart)


def _untrained(cell: PublishedNumber, ours: Ours, study: ComparedStudy) -> Ours:
    """The cell's network at epoch 0; None if there is none, or ``ours`` is of weights from elsewhere."""
    trained = number(ours)
    if trained is None or any(row.epoch <= 0 for row in trained.rows):
        return None
    first = number(find(replace(cell, epoch=0), study))
    return first if first is not None and all(row.epoch == 0 for row in first.rows) else None


def _below(table: PublishedTable, study: ComparedStudy, baselines: Sequence[EvalResult]) -> list[list[str]]:
    """A line for each baseline: its value in every column of its data set, task and metric."""
    cells = table.rows[0][1]
    lines = []
    for name in dict.fromkeys(row.model for row in baselines):
        baseline_rows = {(row.task, row.metric, _dataset(row, study)): row for row in baselines if row.model == name}
        rows = [baseline_rows.get((cell.task, cell.metric, cell.dataset)) for cell in cells]
        if any(rows):
            lines.append([name, *[""] * table.stubs, *("" if row is None else _of_rule(row) for row in rows)])
    return lines


def _of_rule(row: EvalResult) -> str:
    """A baseline's number and interval."""
    return " ".join(filter(None, (f"{row.value:.1f}", spread(row))))


def notes(table: PublishedTable, study: ComparedStudy) -> list[str]:
    """The rule by which our rows were chosen, and what they are."""
    ours = study.principal()
    found = [number(find(cell, ours)) for _, cells in table.rows for cell in cells]
    cells = [one for one in found if one is not None]
    rows = [row for one in cells for row in one.rows]
    lines = [f"Paper: {PAPER}, trained on ImageNet-1k. {table.rule}".strip()]
    if not rows and not study.variants:
        return lines
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
    lines.append("; ".join(about) + ".")
    lines.append(INTERVALS)
    lines.append("Settings: " + setting_note({"": rows}))
    if left := _left_out(study, rows):
        lines.append(
            f"{left} more rows have other settings of the same metrics (rows.html): the setting that most variants "
            f"have is shown; in a tie, the papers' ({PAPERS})."
        )
    return lines


def _epochs(table: PublishedTable, study: ComparedStudy) -> str:
    if not study.epochs:
        return "the epochs of the weights are not known"
    asked = sorted({cell.epoch for _, cells in table.rows for cell in cells}, reverse=True)
    return ", ".join(f"epoch {epoch} of the paper is our {study.epoch(epoch)} of {study.epochs}" for epoch in asked)


def _why(table: PublishedTable, study: ComparedStudy) -> str:
    """Say why nothing of the study fits the table."""
    wanted = {cell.dataset for _, cells in table.rows for cell in cells}
    if not {_dataset(row, study) for variant in study.variants for row in variant.rows} & wanted:
        return f"It evaluates none of {', '.join(sorted(wanted))}."
    if not any(variant.role for variant in study.variants):
        return "None of its variants says whether it has skip connections and how it was initialised."
    return "Its variants, epochs or facets differ from those of the table."


def _left_out(study: ComparedStudy, used: Sequence[EvalResult]) -> int:
    """Count the rows of the same measures that have another setting than the rows in the table."""
    shown = {(row.task, row.metric, row.dataset): setting_of(row) for row in used}
    return sum(
        setting_of(row) != shown[row.task, row.metric, row.dataset]
        for variant in study.variants
        for row in variant.rows
        if comparable(row) and (row.task, row.metric, row.dataset) in shown
    )
