"""Small tables for pages and papers: of text, written as Markdown, CSV and LaTeX (booktabs), and of anything."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from dinoskip.results.rows import formula_safe
from visualize.pages import clean

NOT_RUN = "not run"


@dataclass(frozen=True)
class TextTable:
    """``head`` are header lines of (text, columns that it spans); the first ``stubs`` columns of ``rows`` are labels.

    ``rules`` are numbers of rows that begin a new part, ``notes`` stand below, ``name`` is the file's.
    """

    name: str
    title: str
    head: Sequence[Sequence[tuple[str, int]]]
    rows: Sequence[Sequence[str]]
    stubs: int = 1
    rules: frozenset[int] = frozenset()
    notes: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        """One heading a column: those of all header lines above it, joined."""
        lines = [[text for text, span in line for _ in range(span)] for line in self.head]
        return [", ".join(dict.fromkeys(filter(None, parts))) for parts in zip(*lines, strict=True)]


def mean_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation, as ``41.7 ± 0.8``; the mean alone of one value, and a dash of none."""
    if not values:
        return "–"
    text = f"{statistics.mean(values):.{digits}f}"
    return text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


_ENTITIES = {"&": "&amp;", "<": "&lt;", "~": "&#126;", "$": "&#36;"}


def escape_markdown(text: str, limit: int = 300) -> str:
    """Escape what Markdown or the HTML inside it would interpret, on GitHub as in python-markdown.

    The latter undoes no backslash before ``&``, ``<``, ``~`` and ``$``: these become entities.
    """
    return "".join(
        _ENTITIES.get(letter) or (f"\\{letter}" if letter in "\\`*_[]>|#!" else letter) for letter in clean(text, limit)
    )


def markdown(grid: TextTable) -> str:
    """Title as a heading, the table, its notes."""
    lines = [f"### {escape_markdown(grid.title)}", "", *markdown_rows(grid.columns, grid.rows, grid.stubs)]
    return "\n".join([*lines, *(f"\n{escape_markdown(note, 1200)}" for note in grid.notes)]) + "\n"


def markdown_rows(head: Sequence[str], body: Iterable[Sequence[str]], stubs: int = 1) -> list[str]:
    """The lines of a table."""
    lines = ["| " + " | ".join(map(escape_markdown, head)) + " |"]
    lines += ["|" + "---|" * stubs + "---:|" * (len(head) - stubs)]
    return lines + ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in body]


def as_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines of CSV; text that a spreadsheet would run as a formula begins with a quote."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in [head, *rows]:
        writer.writerow(map(formula_safe, row))
    return stream.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "'": r"\textquotesingle{}",
    "[": "{[}", "]": "{]}", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$",
    "…": r"\dots{}", "–": r"\textendash{}",
    "→": r"$\rightarrow$", "≥": r"$\geq$", "κ": r"$\kappa$", "τ": r"$\tau$", "α": r"$\alpha$", "β": r"$\beta$",
    "†": r"\textdagger{}", "“": "``", "”": "''", "’": "'", "↓": r"$\downarrow$",
}  # fmt: skip


def escape_latex(text: str, limit: int = 300) -> str:
    """Text that pdfLaTeX sets as it reads: commands, ligatures and brackets inactive, letters it lacks as ``?``."""
    shown = "".join(_LATEX.get(letter, letter if ord(letter) < 256 else "?") for letter in clean(text, limit))
    return shown.replace("--", "-{}-").replace("--", "-{}-")  # two of them would become a dash


def latex(grid: TextTable) -> str:
    """A ``table`` with caption, label and booktabs rules; needs ``booktabs`` and ``textcomp`` (``\\usepackage``)."""
    count = len(grid.columns)
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{textcomp}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(grid.title)}}}",
        rf"\label{{tab:{grid.name}}}",
        rf"\begin{{tabular}}{{{'l' * grid.stubs}{'r' * (count - grid.stubs)}}}",
        r"\toprule",
    ]
    for number, line in enumerate(grid.head):
        lines.append(_latex_row([_spanned(text, span) for text, span in line]))
        if number + 1 < len(grid.head):
            lines.append(" ".join(_partial_rules(line)))
    lines.append(r"\midrule")
    for number, row in enumerate(grid.rows):
        if number in grid.rules and number:
            lines.append(r"\midrule")
        lines.append(_latex_row([escape_latex(cell) for cell in row]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    if grid.notes:
        lines += ["", r"\medskip", *(rf"{{\footnotesize {escape_latex(note, 1200)}\par}}" for note in grid.notes)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _spanned(text: str, span: int) -> str:
    shown = escape_latex(text)
    return shown if span == 1 else rf"\multicolumn{{{span}}}{{c}}{{{shown}}}"


def _partial_rules(line: Sequence[tuple[str, int]]) -> list[str]:
    first, rules = 1, []
    for text, span in line:
        if text and span > 1:
            rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
        first += span
    return rules


@dataclass(frozen=True)
class DataTable:
    """A small table of anything: cells are text, numbers (shown with three digits) or None ("not run")."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""
    folded: bool = False  # closed until the reader opens it

    @classmethod
    def of(
        cls,
        title: str,
        rows: Sequence[Any],
        columns: Mapping[str, str] | None = None,
        note: str = "",
        folded: bool = False,
    ) -> DataTable:
        """Make a table of dataclasses or mappings; ``columns`` picks, orders and renames fields (None: all)."""
        plain = [asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row) for row in rows]
        chosen = dict(columns) if columns else {name: name.replace("_", " ") for name in (plain[0] if plain else {})}
        return cls(title, list(chosen.values()), [[row.get(name) for name in chosen] for row in plain], note, folded)


def shown(value: object) -> str:
    """A cell's text: three significant digits, powers for the very large and small, "not run" for None."""
    if isinstance(value, float) and math.isfinite(value):
        size = abs(value)
        if value == 0 or 0.001 <= size < 1e4:
            return f"{value:#.3g}" if size < 100 else f"{value:,.0f}"
        power = math.floor(math.log10(size))
        return f"{value / 10.0**power:.1f}·10{str(power).translate(_POWERS)}"
    return NOT_RUN if value is None else setting(value)


def setting(value: object) -> str:
    """A setting's text: numbers as they would be typed, lists and mappings on one line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(key, 60)} {setting(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(setting(part) for part in value) or "none"
    return clean(value, 300)


_POWERS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
