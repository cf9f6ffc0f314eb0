"""The report as GitHub Markdown: tables, figures, settings, commands; no photographs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from visualize.pages import clean
from visualize.report.content import Report
from visualize.report.tables import ReportTables
from visualize.tables import DataTable, TextTable, escape_markdown, markdown, markdown_rows, setting, shown


def report_markdown(report: Report, tables: ReportTables, pictures: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """The report as one Markdown document; ``pictures``: addresses and words of copied figures and previews."""
    text = escape_markdown
    parts = [f"# {text(report.title)}"]
    parts += [text(report.note, 1200)] if report.note else []
    verdict = " ".join(tables.verdict.splitlines())
    parts += [f"**{text(verdict, 1200)}**", *map(_bare, tables.overview)]
    figures = [(picture["path"], picture["caption"], "") for picture in pictures["plain"]]
    parts += [_figure(*figure) for figure in figures[:1]]
    said = "\n".join(f"- {text(sentence, 2400)}" for sentence in tables.separated)
    parts += [_folded("Scores, intervals, blocks"), *([said] if said else []), markdown(tables.answer)]
    parts += ["</details>"]
    if tables.silent:
        title = _folded("Inconclusive metrics")
        parts += [title, markdown(tables.silent), "</details>"]
    if report.notices:
        parts += [_folded("Skipped or noticed")]
        parts += ["\n".join(f"- {text(notice, 600)}" for notice in report.notices), "</details>"]
    parts += [_folded("Best block of each network, figures, every block, settings")]
    parts += ["## Numbers", markdown(tables.best)]
    if tables.beside:
        parts += ["## Beside the paper", *map(markdown, tables.beside)]
    drawn = [(raster(picture), picture["caption"], picture["reading"]) for picture in pictures["figures"]] + figures[1:]
    parts += ["## Figures", *(_figure(*figure) for figure in drawn)] if drawn else []
    if tables.blocks:
        parts += ["## Every block", *(markdown(grid) for grid in tables.blocks)]
    parts += [markdown(tables.settings)] if tables.settings else []
    if report.diagnostics:
        parts += ["## Diagnostics", *(_markdown_table(table) for table in report.diagnostics if not table.folded)]
    keys = list(dict.fromkeys(key for variant in report.variants for key in variant.settings))
    body = [[variant.name, *(setting(variant.settings.get(key, "–")) for key in keys)] for variant in report.variants]
    parts += ["## Variants", "\n".join(markdown_rows(["variant", *keys], body, 1 + len(keys)))]
    if report.environment:
        parts += ["## Environment", _settings_list(report.environment)]
    if report.protocol:
        parts += ["## Protocol"]
        parts += [f"### {text(name)}\n\n{_settings_list(values)}" for name, values in report.protocol.items()]
    if report.unmeasured:
        parts += [f"Not asked for: {text(', '.join(report.unmeasured), 600)}."]
    if report.commands:
        lines = "\n".join(f"    {clean(command, 2000)}" for command in report.commands)
        parts += ["## Reproduce", lines]
    parts += ["</details>"]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def raster(figure: Mapping[str, str]) -> str:
    """The address of a copied figure for Markdown: its PNG, or the light SVG where there is none."""
    return figure.get("png", figure["light"])


def _folded(title: str) -> str:
    """The start of a fold, in which python-markdown reads Markdown, too, as GitHub does."""
    return f'<details markdown="1"><summary>{title}</summary>'


def _figure(path: str, caption: str, reading: str) -> str:
    words = f"{escape_markdown(caption, 400)}. {escape_markdown(reading, 900)}".strip()
    return f"![{escape_markdown(caption, 400)}]({path})\n\n{words}"


def _bare(table: TextTable) -> str:
    """A table without its title and notes."""
    return "\n".join(markdown_rows([text for text, _ in table.head[0]], table.rows, table.stubs))


def _settings_list(values: Mapping[str, object]) -> str:
    return "\n".join(f"- {escape_markdown(key)}: {escape_markdown(setting(value))}" for key, value in values.items())


def _markdown_table(table: DataTable) -> str:
    lines = markdown_rows(list(table.columns), [[shown(cell) for cell in row] for row in table.rows])
    note = f"\n\n{escape_markdown(table.note, 600)}" if table.note else ""
    return f"### {escape_markdown(table.title)}\n\n" + "\n".join(lines) + note
