"""The report: one page that says what was run, what came out, how, and how to run it again; opens from disk.

Beside ``index.html``: the same in Markdown, every row (a page and CSV), each table as Markdown, CSV and LaTeX, each
figure as SVG, PDF and PNG. The same input gives the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from dinoskip.errors import translate_write_errors
from dinoskip.io.files import write_text
from dinoskip.results.rows import EvalResult
from visualize.comparison import Scores
from visualize.figures.drawing import Figure
from visualize.pages import relative_link, render_page
from visualize.report import sections
from visualize.report.answer import NO_LABELS, NO_SCORE, Answer, answers, choices, dependences, unpaired, verdict
from visualize.report.answer_table import answer_table
from visualize.report.cautions import cautions
from visualize.report.content import Preview, Report
from visualize.report.first_sentence import features_said, inconclusive_said
from visualize.report.markdown import report_markdown
from visualize.report.overview import OverviewGrid, grid_of, legend, overview_tables, overviews
from visualize.report.rows_page import write_long_table
from visualize.report.separation import separation_said, separations, speechless
from visualize.report.tables import (
    BEST_NOTE,
    Line,
    ReportTables,
    baseline_lines,
    best_grid,
    best_lines,
    block_grids,
    others_grid,
)
from visualize.rows import Benchmark, families, last_epochs, principal, rows_csv, setting_note, untrained_rows
from visualize.tables import NOT_RUN, as_csv, latex, markdown, setting


def build_report(report: Report, out: Path) -> None:
    """Write the page and all that stands beside it into ``out``.

    Raises :class:`ConfigError` for a gallery link that is not relative.
    """
    kept = principal(report.rows, every_read_point=True)
    scores = Scores(kept, report.records)
    separated = separations(report.variants, scores, report.baselines)
    alone = len(families(report.variants)) == 1
    folded = {} if alone else speechless(separated)  # one network alone has nothing to separate
    every = answers(report.variants, scores, report.baselines, folded)
    pairs, silent = (
        [replace(pair, lines=[line for line in pair.lines if (line.benchmark in folded) == hidden]) for pair in every]
        for hidden in (False, True)
    )
    seen = list(map(grid_of, overviews(every, folded, unpaired(report.variants, scores, report.baselines))))
    tables = ReportTables(
        answer_table(pairs, every=every),
        answer_table(silent, "silent", "Inconclusive metrics") if folded else None,
        separation_said(separated),
        best_grid(kept, report.baselines),
        block_grids(kept, report.baselines),
        others_grid(report.rows),
        report.papers,
        _first_screen(report, every, pairs, folded),
        overview_tables(seen),
    )
    for folder in ("img", "tables"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    pictures = copied(report.figures, report.previews, out / "img")
    _write_page(report, kept, (pairs, silent), seen, tables, pictures, out / "index.html")
    write_text(out / "report.md", report_markdown(report, tables, pictures))
    below = {row.model: [base for base in report.baselines if base.model == row.model] for row in report.baselines}
    rows = {**{variant.file_name: variant.rows for variant in report.variants}, **below}
    write_long_table(report.title, rows, out / "rows.html")
    write_text(out / "rows.csv", rows_csv(rows))
    plain = [tables.answer, tables.best, *tables.blocks]
    plain += [grid for grid in (tables.silent, tables.settings) if grid]
    for grid in [*plain, *tables.beside]:
        write_text(out / "tables" / f"{grid.name}.md", markdown(grid))
        write_text(out / "tables" / f"{grid.name}.tex", latex(grid))
    for grid in plain:
        write_text(out / "tables" / f"{grid.name}.csv", as_csv(grid.columns, grid.rows))
    for table in tables.papers:
        write_text(out / "tables" / f"{table.grid.name}.csv", table.csv)


def _first_screen(
    report: Report, every: Sequence[Answer], pairs: Sequence[Answer], folded: Mapping[Benchmark, str]
) -> str:
    """The page's first lines: the verdict and on what it depends, inconclusive metrics; without scores, features."""
    said = verdict(pairs, every)
    if said == NO_SCORE:
        return " ".join(filter(None, [said if report.labelled else NO_LABELS, features_said(report.features)]))
    verdicts = " ".join(filter(None, [said, *dependences(every)]))
    return "\n".join(filter(None, [verdicts, inconclusive_said(every, folded)]))


def copied(figures: Sequence[Figure], previews: Sequence[Preview], folder: Path) -> dict[str, list[dict[str, str]]]:
    """Copy figures (all their files) and previews into ``folder``; their addresses from the page and words."""
    drawn = []
    for figure in figures:
        names = {kind: _copy(path, folder / path.name) for kind, path in figure.files.items()}
        drawn.append(
            {
                "caption": figure.caption,
                "reading": figure.reading,
                "alt": figure.alt,
                "width": f"{figure.width:.0f}",
                **names,
            }
        )
    photographs: list[dict[str, str]] = []
    plain: list[dict[str, str]] = []
    for number, preview in enumerate(previews):
        path = _copy(preview.path, folder / f"preview-{number}{_suffix(preview.path)}")
        shown = photographs if preview.photographs else plain
        shown.append({"caption": preview.caption, "alt": preview.alt, "path": path})
    return {"figures": drawn, "previews": photographs, "plain": plain}


def _write_page(
    report: Report,
    kept: Mapping[str, Sequence[EvalResult]],
    answered: tuple[Sequence[Answer], Sequence[Answer]],
    seen: Sequence[OverviewGrid],
    tables: ReportTables,
    pictures: Mapping[str, list[dict[str, str]]],
    out: Path,
) -> None:
    names, (pairs, silent) = list(report.rows), answered
    measured, begun = last_epochs(kept), untrained_rows(kept)
    floor = baseline_lines(report.baselines, measured)
    lines: list[Line] = [*best_lines(kept), *floor]
    context: dict[str, Any] = {
        "report": report,
        "names": names,
        "answers": [sections.answer(answer) for answer in pairs],
        "verdict": tables.verdict,
        "overviews": seen,
        "legend": legend(seen),
        "choices": choices(pairs),
        "separated": tables.separated,
        "shown_as": {name: variants[0].name for name, variants in families(report.variants).items()},
        "silent": [sections.answer(answer) for answer in silent],
        "cautions": [*cautions(pairs, silent), *report.confounds],
        "measures": list(measured),
        "best": lines,
        "best_notes": [BEST_NOTE, setting_note(kept)],
        "blocks": [
            sections.heat(benchmark, measured[benchmark], names, begun[benchmark], floor, number)
            for number, benchmark in enumerate(measured)
        ],
        "settings_grid": sections.grid(tables.settings) if tables.settings else None,
        "papers": [sections.grid(grid) for grid in tables.beside],
        **pictures,
        "head_figures": _named(pictures["figures"], ("blocks", "features"))[:1],  # without scores the features' curves
        # beside several networks' pictures the bars of each class would fill a screen: they are among the figures
        "class_figures": _named(pictures["figures"], ("classes",)) if len(names) == 1 else [],
        "gallery": relative_link(report.gallery) if report.gallery else None,
        "sheets": _sheets(report.sheets),
        "settings": list(dict.fromkeys(key for variant in report.variants for key in variant.settings)),
        "diagnostics": [sections.plain(table) for table in report.diagnostics],
        "not_run": NOT_RUN,
        "setting": setting,
        "count": sum(map(len, report.rows.values())) + len(report.baselines),
    }
    extra = sections.styles(names)
    render_page(out, "report.html", context, styles=("base.css", "report.css"), extra_style=extra, script="sort.js")


def _named(drawn: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[Mapping[str, str]]:
    """The figures that go by these names, in their order."""
    by_name = {PurePosixPath(figure["light"]).stem: figure for figure in drawn}
    return [by_name[name] for name in names if name in by_name]


def _sheets(links: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Links by name: ``{"sheet-block11": [("PDF", link), ("PNG", link)]}``."""
    links_by_name: dict[str, list[tuple[str, str]]] = {}
    for link in links:
        path = PurePosixPath(link)
        links_by_name.setdefault(path.stem, []).append((path.suffix[1:].upper(), relative_link(link)))
    return links_by_name


def _suffix(path: Path) -> str:
    """The ending a preview keeps: only kinds that a page shows as a picture."""
    return path.suffix.lower() if path.suffix.lower() in {".png", ".jpg", ".svg"} else ".png"


def _copy(source: Path, target: Path) -> str:
    """Copy a picture beside the page; return its address from the page."""
    with translate_write_errors(target):
        shutil.copyfile(source, target)
    return f"img/{target.name}"
