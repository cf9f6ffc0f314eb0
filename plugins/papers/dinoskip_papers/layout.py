"""A published table laid out with ours: for each printed line ours, untrained, the paper's, differences; and as CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dinoskip.decisions.wording import points, signed
from dinoskip.results.estimates import Difference
from dinoskip_papers.cells import Contested, OurNumber, Ours, number
from visualize.rows import setting_of
from visualize.tables import NOT_RUN, TextTable, as_csv


@dataclass(frozen=True)
class TableCell:
    """A printed cell: the paper's number (None: not legible), ours, ours before training, and ours from our own
    network that the line is compared with. ``digits`` are printed after the point.
    """

    paper: float | None
    ours: Ours
    untrained: Ours = None
    apart: Difference | None = None
    digits: int = 1


@dataclass(frozen=True)
class TableLine:
    """A printed line: its labels, its cells, and what the last of our lines is called: ``ours − skip``."""

    labels: Sequence[str]
    cells: Sequence[TableCell]
    against: str = ""


@dataclass(frozen=True)
class ComparedTable:
    """A published table with our numbers: its printed lines, and what it is called.

    ``parts`` are numbers of lines that begin a new part, ``below`` whole text lines under all, ``notes`` stand under
    the table.
    """

    name: str
    title: str
    head: Sequence[Sequence[tuple[str, int]]]
    stubs: int
    lines: Sequence[TableLine]
    parts: frozenset[int] = frozenset()
    below: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def file(self) -> str:
        """Its file's name without suffix."""
        return self.name.replace(".", "-")

    @property
    def filled(self) -> tuple[int, int]:
        """The number of cells that have a number of ours, and the number of all cells."""
        cells = [cell for line in self.lines for cell in line.cells]
        return sum(number(cell.ours) is not None for cell in cells), len(cells)

    @property
    def contested(self) -> list[str]:
        """A sentence for each set of networks that would stand in the same cells."""
        places: dict[str, list[str]] = {}
        for line in self.lines:
            for cell in line.cells:
                if isinstance(cell.ours, Contested):
                    places.setdefault(cell.ours.names, []).append(" ".join(filter(None, line.labels)))
        return [
            f"{names} would stand in the same cells ({', '.join(dict.fromkeys(lines))}) and are not seeds of one "
            "network: none of them does. Leave all but one out, or name one otherwise."
            for names, lines in places.items()
        ]

    @property
    def grid(self) -> TextTable:
        """The table as text: up to five lines for each printed one, then those ``below``."""
        rows: list[Sequence[str]] = []
        rules: set[int] = set()
        for place, line in enumerate(self.lines):
            if place in self.parts:
                rules.add(len(rows))
            rows += _text_lines(line, self.stubs)
        rules |= {len(rows)} if self.below else set()
        head = [[*line[: self.stubs], ("", 1), *line[self.stubs :]] for line in self.head]
        notes = [*self.notes, *self.contested]
        return TextTable(self.file, self.title, head, [*rows, *self.below], self.stubs + 1, frozenset(rules), notes)

    @property
    def csv(self) -> str:
        """One line a printed cell: where it is, ours and what it is of, the paper's number, the differences."""
        columns = TextTable("", "", self.head, ()).columns[self.stubs :]
        lines = [
            [self.name, " ".join(filter(None, line.labels)), column, *_csv_cell(cell)]
            for line in self.lines
            for column, cell in zip(columns, line.cells, strict=True)
        ]
        return as_csv(_CSV_HEAD, lines)


def _text_lines(line: TableLine, stubs: int) -> Iterator[list[str]]:
    """Ours, untrained, the paper's, the difference to it, and that to our own network."""
    without = [""] * stubs
    yield [*line.labels, "ours", *(NOT_RUN if cell.ours is None else cell.ours.text for cell in line.cells)]
    if any(cell.untrained for cell in line.cells):
        yield [*without, "untrained", *("" if cell.untrained is None else cell.untrained.text for cell in line.cells)]
    yield [*without, "paper", *("–" if cell.paper is None else f"{cell.paper:.{cell.digits}f}" for cell in line.cells)]
    gaps = [_gap(cell) for cell in line.cells]
    if any(gaps):
        yield [*without, "difference", *gaps]
    if any(cell.apart for cell in line.cells):
        yield [*without, line.against, *(_own(cell.apart) for cell in line.cells)]


def _own(apart: Difference | None) -> str:
    """A difference between two networks of ours, its interval and p."""
    p = math.nan if apart is None else apart.p
    return points(apart) + ("" if math.isnan(p) else f", p = {p:.2g}")


def _gap(cell: TableCell) -> str:
    """Our mean, as printed, minus the paper's number."""
    ours = number(cell.ours)
    gap = None if ours is None else ours.above(cell.paper)
    if gap is None:
        return ""
    return signed(gap) if cell.digits == 1 else f"{gap:+.{cell.digits}f}".replace("-", "−")


_CSV_HEAD = (
    "table", "row", "column", "ours", "deviation", "seeds", "low", "high", "paper", "difference",
    "own_difference", "own_low", "own_high", "own_p", "own_paired",
    "variant", "epoch", "block", "dataset", "split", "n", "facet", "norm", "resolution", "protocol",
)  # fmt: skip
_OF_A_ROW = 9  # fields of the row that a number is of, after its network


def _csv_cell(cell: TableCell) -> list[object]:
    paper: object = "" if cell.paper is None else cell.paper
    ours = cell.ours
    if not isinstance(ours, OurNumber):
        return [NOT_RUN if ours is None else ours.text, *[""] * 4, paper, *[""] * (6 + 1 + _OF_A_ROW)]
    low, high = ours.interval or (None, None)
    gap = "" if cell.paper is None else round(ours.summary.mean - cell.paper, 4)
    apart = cell.apart
    own = [""] * 5 if apart is None else [apart.value, apart.low, apart.high, apart.p, apart.paired]
    of: list[object] = [""] * _OF_A_ROW
    if ours.rows:
        first = ours.rows[0]
        of = [first.epoch, " ".join(dict.fromkeys(row.block for row in ours.rows)), first.dataset, first.split, first.n]
        of += setting_of(first)
    values = [ours.summary.mean, ours.deviation, ours.summary.n, low, high, paper, gap, *own, ours.network, *of]
    return ["" if value is None or (isinstance(value, float) and math.isnan(value)) else value for value in values]
