"""The report: one page that says what was run, what came out, how, and how to run it again; opens from disk.

Beside ``index.html``: the same in Markdown, every row (a page and CSV), each table as Markdown, CSV and LaTeX, each
figure as SVG, PDF and PNG. The same input gives the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dinoskip.errors import translate_write_errors
from dinoskip.files import write_text
from dinoskip.results import EvalResult
from visualize import sections
from visualize.claims import Roughness, claims, claims_grid
from visualize.compare import Study, Subject, compared, compared_csv
from visualize.datatable import DataTable, setting, shown
from visualize.drawing import Figure
from visualize.grids import NOT_RUN, Grid, as_csv, escape_markdown, latex, markdown, markdown_rows
from visualize.longtable import write_long_table
from visualize.pages import clean, relative_link, render_page
from visualize.published import PublishedTable, published
from visualize.tables import (
    BEST_NOTE,
    Line,
    baseline_lines,
    best_grid,
    best_lines,
    block_grids,
    last_epochs,
    one_vote,
    others_grid,
    principal,
    rows_csv,
    setting_note,
    starts,
)


@dataclass(frozen=True)
class ReportVariant:
    """One variant of the study: its rows, and its settings as they should be read (model, optimizer, weights, ...).

    ``role`` (of ``visualize.published``), ``optimizer`` and ``depth`` say in which cells of a published table it
    stands; "" stands in none.
    """

    name: str
    rows: Sequence[EvalResult] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    role: str = ""
    optimizer: str = ""
    depth: int = 0


@dataclass(frozen=True)
class Preview:
    """A picture to show in the report, copied beside it: a contact sheet.

    Those with photographs are on the page alone, the others in ``report.md`` alone, which may be passed on.
    """

    path: Path
    caption: str
    alt: str
    photographs: bool = True


@dataclass(frozen=True)
class Report:
    """All that the page shows. What is empty is left out, except measures, which say "not run".

    ``gallery`` is a relative link from the report's folder (``../gallery/index.html``), as are ``sheets``;
    ``protocol`` is ``{section: {setting: value}}``; ``baselines`` are rows of rules that look at no image, shown
    below the variants'; ``notices`` are one-line warnings and reasons why something was skipped; ``commands`` are
    shell lines that reproduce the study. ``compare`` names published tables; ``datasets`` is
    ``{our data set: the paper's}``, ``epochs`` the length of our runs and ``trained_on`` what they saw. With
    ``compare`` the paper's claims are gone through as well; ``roughness`` is of the gallery's pictures at ``block``.
    """

    title: str
    variants: Sequence[ReportVariant]
    baselines: Sequence[EvalResult] = ()
    note: str = ""
    figures: Sequence[Figure] = ()
    gallery: str | None = None
    previews: Sequence[Preview] = ()
    sheets: Sequence[str] = ()
    diagnostics: Sequence[DataTable] = ()
    environment: Mapping[str, object] = field(default_factory=dict)
    protocol: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    notices: Sequence[str] = ()
    commands: Sequence[str] = ()
    compare: Sequence[str] = ()
    datasets: Mapping[str, str] = field(default_factory=dict)
    epochs: int = 0
    trained_on: str = ""
    roughness: Roughness = field(default_factory=dict)
    block: int = 0

    @property
    def rows(self) -> dict[str, Sequence[EvalResult]]:
        """Rows by variant."""
        return {variant.name: variant.rows for variant in self.variants}


@dataclass(frozen=True)
class _Tables:
    """Every table of a report."""

    best: Grid
    blocks: Sequence[Grid]
    settings: Grid | None
    papers: Sequence[tuple[PublishedTable, Grid]]
    claims: Grid | None

    @property
    def beside(self) -> list[Grid]:
        """What stands beside the paper: its claims, then its tables."""
        return [*([self.claims] if self.claims else []), *(grid for _, grid in self.papers)]


def build_report(report: Report, out: Path) -> None:
    """Write the page and all that stands beside it into ``out``.

    Raises :class:`ConfigError` for a gallery link that is not relative or an unknown ``compare``.
    """
    subjects = [Subject(one.name, one.role, one.optimizer, one.depth, one.rows) for one in report.variants]
    study = Study(subjects, report.datasets, report.epochs, report.trained_on)
    kept = principal(report.rows)
    tables = _Tables(
        best_grid(kept, report.baselines),
        block_grids(kept, report.baselines),
        others_grid(report.rows),
        [(table, compared(table, study, report.baselines)) for table in map(published, report.compare)],
        claims_grid(claims(study, report.roughness, report.block)) if report.compare else None,
    )
    for folder in ("img", "tables"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    pictures = _copied(report, out / "img")
    _write_page(report, kept, tables, pictures, out / "index.html")
    write_text(out / "report.md", _markdown(report, tables, pictures))
    below = {row.model: [one for one in report.baselines if one.model == row.model] for row in report.baselines}
    every = {**report.rows, **below}
    write_long_table(report.title, every, out / "rows.html")
    write_text(out / "rows.csv", rows_csv(every))
    plain = [tables.best, *tables.blocks, *([tables.settings] if tables.settings else [])]
    for grid in [*plain, *tables.beside]:
        write_text(out / "tables" / f"{grid.name}.md", markdown(grid))
        write_text(out / "tables" / f"{grid.name}.tex", latex(grid))
    for grid in [*plain, *([tables.claims] if tables.claims else [])]:
        write_text(out / "tables" / f"{grid.name}.csv", as_csv(grid.columns, grid.rows))
    for table, grid in tables.papers:
        write_text(out / "tables" / f"{grid.name}.csv", compared_csv(table, study))


def _copied(report: Report, folder: Path) -> dict[str, list[dict[str, str]]]:
    """Copy figures (all their files) and previews into ``folder``; their addresses from the page and words."""
    figures = []
    for figure in report.figures:
        names = {kind: _copy(path, folder / path.name) for kind, path in zip(_KINDS, figure.files, strict=True)}
        figures.append({"caption": figure.caption, "alt": figure.alt, "width": f"{figure.width:.0f}", **names})
    previews: list[dict[str, str]] = []
    plain: list[dict[str, str]] = []
    for number, preview in enumerate(report.previews):
        path = _copy(preview.path, folder / f"preview-{number}{_suffix(preview.path)}")
        shown = previews if preview.photographs else plain
        shown.append({"caption": preview.caption, "alt": preview.alt, "path": path})
    return {"figures": figures, "previews": previews, "plain": plain}


_KINDS = ("light", "dark", "pdf", "png")


def _write_page(
    report: Report,
    kept: Mapping[str, Sequence[EvalResult]],
    tables: _Tables,
    pictures: Mapping[str, object],
    out: Path,
) -> None:
    names = list(report.rows)
    found, begun = last_epochs(kept), starts(kept)
    floor = baseline_lines(report.baselines, found)
    lines: list[Line] = [*best_lines(kept), *floor]
    context: dict[str, Any] = {
        "report": report,
        "names": names,
        "scores": [sections.score(measure, rows, names) for measure, rows in one_vote(found).items()],
        "measures": list(found),
        "best": lines,
        "best_notes": [BEST_NOTE, setting_note(kept)],
        "blocks": [
            sections.heat(measure, found[measure], names, begun[measure], floor, number)
            for number, measure in enumerate(found)
        ],
        "settings_grid": sections.grid(tables.settings) if tables.settings else None,
        "papers": [sections.grid(grid) for grid in tables.beside],
        **pictures,
        "gallery": relative_link(report.gallery) if report.gallery else None,
        "sheets": _sheets(report.sheets),
        "settings": list(dict.fromkeys(key for variant in report.variants for key in variant.settings)),
        "diagnostics": [sections.plain(table) for table in report.diagnostics],
        "not_run": NOT_RUN,
        "setting": setting,
        "count": sum(map(len, report.rows.values())) + len(report.baselines),
    }
    extra = sections.styles(len(names))
    render_page(out, "report.html", context, styles=("base.css", "report.css"), extra_style=extra, script="sort.js")


def _sheets(links: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Links by name: ``{"sheet-block11": [("PDF", link), ("PNG", link)]}``."""
    found: dict[str, list[tuple[str, str]]] = {}
    for link in links:
        path = PurePosixPath(link)
        found.setdefault(path.stem, []).append((path.suffix[1:].upper(), relative_link(link)))
    return found


def _markdown(report: Report, tables: _Tables, pictures: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """The report as GitHub Markdown: tables, figures, settings, commands; no photographs."""
    text = escape_markdown
    parts = [f"# {text(report.title)}"]
    parts += [text(report.note, 600)] if report.note else []
    if report.notices:
        parts += ["## Skipped or noticed", "\n".join(f"- {text(notice, 600)}" for notice in report.notices)]
    parts += ["## Numbers", markdown(tables.best)]
    if tables.beside:
        parts += ["## Beside the paper", *map(markdown, tables.beside)]
    figures = [(one["png"], one["caption"]) for one in pictures["figures"]]
    figures += [(one["path"], one["caption"]) for one in pictures["plain"]]
    if figures:
        parts += ["## Figures"]
        parts += [f"![{text(caption, 400)}]({path})\n\n{text(caption, 400)}." for path, caption in figures]
    if tables.blocks:
        parts += ["## Every block", *(markdown(grid) for grid in tables.blocks)]
    parts += [markdown(tables.settings)] if tables.settings else []
    if report.diagnostics:
        parts += ["## Diagnostics", *(_markdown_table(table) for table in report.diagnostics if not table.folded)]
    keys = list(dict.fromkeys(key for variant in report.variants for key in variant.settings))
    body = [[one.name, *(setting(one.settings.get(key, "–")) for key in keys)] for one in report.variants]
    parts += ["## Variants", "\n".join(markdown_rows(["variant", *keys], body, 1 + len(keys)))]
    for title, values in [("Environment", report.environment)] if report.environment else []:
        parts += [f"## {title}", _settings_list(values)]
    if report.protocol:
        parts += ["## Protocol"]
        parts += [f"### {text(name)}\n\n{_settings_list(values)}" for name, values in report.protocol.items()]
    if report.commands:
        lines = "\n".join(f"    {clean(command, 2000)}" for command in report.commands)
        parts += ["## Reproduce", lines]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _settings_list(values: Mapping[str, object]) -> str:
    return "\n".join(f"- {escape_markdown(key)}: {escape_markdown(setting(value))}" for key, value in values.items())


def _markdown_table(table: DataTable) -> str:
    lines = markdown_rows(list(table.columns), [[shown(cell) for cell in row] for row in table.rows])
    note = f"\n\n{escape_markdown(table.note, 600)}" if table.note else ""
    return f"### {escape_markdown(table.title)}\n\n" + "\n".join(lines) + note


def _suffix(path: Path) -> str:
    """The ending a preview keeps: only kinds that a page shows as a picture."""
    return path.suffix.lower() if path.suffix.lower() in {".png", ".jpg", ".svg"} else ".png"


def _copy(source: Path, target: Path) -> str:
    """Copy a picture beside the page; return its address from the page."""
    with translate_write_errors(target):
        shutil.copyfile(source, target)
    return f"img/{target.name}"
