"""The page of the whole paper: its tables, figures and claims, filled from what studies have measured.

A table is filled by the group of studies that has most of its cells; what no study has is named with the configuration
that makes it. Beside ``index.html``: the same in Markdown without photographs, each table as Markdown, CSV and LaTeX,
each figure as SVG, PDF and PNG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dinoskip.io.files import write_text
from dinoskip_papers.beside import compared_study
from dinoskip_papers.claims import Claim, claims, claims_grid, corrected
from dinoskip_papers.compare import compared, filled
from dinoskip_papers.items import CUTTING_THE_SKIP
from dinoskip_papers.other_page import commands, reason
from dinoskip_papers.published import MADE_BY, PUBLISHED, PublishedTable
from visualize.comparison import Scores
from visualize.figures.drawing import Figure
from visualize.pages import render_page
from visualize.report import sections
from visualize.report.content import Preview, Report
from visualize.report.markdown import raster
from visualize.report.page import copied
from visualize.rows import principal
from visualize.tables import TextTable, as_csv, escape_markdown, latex, markdown, markdown_rows

TITLE = "Cutting the Skip, table by table"
_FIGURES = {
    "figure 1": "Figure 1: training loss of ViT-Base with AdamW and SOAP",
    "figure 2": "Figure 2: dense linear probing throughout pretraining",
    "figure 4": "Figure 4: PCA of patch features to RGB, the first photographs",
    "figure 5": "Figure 5: softmax of peaked and diffuse matrices",
    "figure 6": "Figure 6: PCA of patch features to RGB, all photographs",
}
_PARTS = ("figure 1", "paper.table1", "paper.table2", "figure 2", "paper.figure3", "paper.table3", "paper.table4",
          "figure 4", "figure 5", "figure 6")  # fmt: skip


@dataclass(frozen=True)
class PaperPage:
    """Contents of the page.

    ``groups``: studies whose networks were trained alike, each group as one report. ``figures`` and ``pictures`` go by
    the paper's name (``figure 1``). ``sources`` is ``{folder of a study: its title}``; ``cautions`` are notes of this
    paper's studies, and what else their networks differ in.
    """

    groups: Sequence[Report]
    figures: Mapping[str, Figure]
    pictures: Mapping[str, Preview]
    sources: Mapping[str, str]
    cautions: Sequence[str]


def build_paper(page: PaperPage, out: Path) -> dict[str, tuple[int, int]]:
    """Write the page into ``out``; return of every published table how many cells have a number of ours, and all."""
    for folder in ("img", "tables"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    tables: dict[str, TextTable] = {}
    counts: dict[str, tuple[int, int]] = {}
    for name, table in PUBLISHED.items():
        group = _fullest(table, page.groups)
        ours = compared(table, compared_study(group), group.baselines)
        counts[name], grid = ours.filled, ours.grid
        tables[name] = replace(grid, notes=[*grid.notes, *([f"From {group.title}."] if group.title else [])])
        write_text(out / "tables" / f"{ours.file}.csv", ours.csv)
    judged = paper_claims(page.groups)
    tables["claims"] = claims_grid(judged)
    write_text(out / "tables" / "claims.csv", as_csv(tables["claims"].columns, tables["claims"].rows))
    for grid in tables.values():
        write_text(out / "tables" / f"{grid.name}.md", markdown(grid))
        write_text(out / "tables" / f"{grid.name}.tex", latex(grid))
    pictures = copied(list(page.figures.values()), list(page.pictures.values()), out / "img")
    drawn = dict(zip(page.figures, pictures["figures"], strict=True))
    photographs = dict(zip(page.pictures, pictures["previews"], strict=True))
    parts = [_part(name, tables, counts, drawn, photographs) for name in _PARTS] + _other_items()
    context = {
        "title": TITLE,
        "claims_said": _claims_said(judged),
        "claims": sections.grid(tables["claims"]),
        "parts": parts,
        "cautions": page.cautions,
        "sources": page.sources,
    }
    styles = ("base.css", "report.css")
    render_page(out / "index.html", "paper.html", context, styles=styles, folder=Path(__file__).parent / "templates")
    write_text(out / "paper.md", _markdown(context, tables))
    return counts


def paper_claims(groups: Sequence[Report]) -> list[Claim]:
    """The paper's claims by the comparisons within each group, corrected together for their number."""
    judged = [
        claims(compared_study(group), Scores(principal(group.rows), group.records), group.roughness, group.block)
        for group in groups
    ]
    together = [
        replace(same[0], comparisons=[comparison for claim in same for comparison in claim.comparisons])
        for same in zip(*judged, strict=True)
    ]
    return corrected(together)


def _fullest(table: PublishedTable, groups: Sequence[Report]) -> Report:
    """The group made for a table that fills most of it; an empty one if none was."""
    complete = [group for group in groups if table.name in group.compare]
    return max(complete, key=lambda group: filled(table, compared_study(group)), default=Report("", ()))


def _part(
    name: str,
    tables: Mapping[str, TextTable],
    counts: Mapping[str, tuple[int, int]],
    drawn: Mapping[str, Any],
    photographs: Mapping[str, Any],
) -> dict[str, Any]:
    """A table or figure as the template needs it; ``made_by`` is empty if nothing of it is missing."""
    if name in tables:
        have, every = counts[name]
        there, whole = f"{have} of {every} cells", have == every
        title = tables[name].title
    else:
        whole = name in drawn or name in photographs
        there, title = "drawn" if whole else "not run", _FIGURES[name]
    return {
        "key": name,
        "name": name.replace(" ", "-").replace(".", "-"),
        "short": title.partition(":")[0],
        "title": title,
        "there": there,
        "grid": sections.grid(tables[name]) if name in tables else None,
        "figure": drawn.get(name),
        "picture": photographs.get(name),
        "numbers": None,
        "found": "",
        "why": "".join(reason(item) for item in CUTTING_THE_SKIP if name in (item.name, item.table)),
        "made_by": "" if whole else f"dinoskip run {MADE_BY.get(name, '')}",
    }


def _other_items() -> list[dict[str, Any]]:
    """Items of the paper's record that are neither a table nor a figure of the page."""
    there = {*_PARTS, *(name.replace("paper.", "") for name in _PARTS)}
    return [
        {
            "key": item.name, "name": f"item-{number}", "short": item.name, "title": f"{item.name}: {item.about}",
            "there": "not on this page" if item.made_by else "not made", "grid": None, "figure": None,
            "picture": None, "numbers": None, "why": reason(item), "found": "", "made_by": commands(item),
        }
        for number, item in enumerate(CUTTING_THE_SKIP)
        if not {item.name, item.table, item.name.replace(" ", "")} & there
    ]  # fmt: skip


def _claims_said(judged: Sequence[Claim]) -> str:
    """``22 claims: 19 undecided, 3 supported``; without a study, that there is none."""
    if not judged:
        return "No study is given"
    counts = Counter(claim.verdict for claim in judged).most_common()
    return f"{len(judged)} claims: {', '.join(f'{count} {verdict}' for verdict, count in counts)}"


def _markdown(context: Mapping[str, Any], tables: Mapping[str, TextTable]) -> str:
    """The page in Markdown; photographs stay on the page."""
    rows = [[part["title"], part["there"], part["made_by"]] for part in context["parts"]]
    lines = [f"# {context['title']}", f"{context['claims_said']}."]
    lines += ["\n".join(markdown_rows(["", "here", "what is missing is made by"], rows, 3))]
    if context["cautions"]:
        lines += [
            "## Confounds, what was skipped or noticed",
            "\n".join(f"- {escape_markdown(line, 600)}" for line in context["cautions"]),
        ]
    for part in context["parts"]:
        if part["grid"]:
            lines += [markdown(tables[part["key"]]).strip()]
            continue
        lines += [f"### {part['title']}"]
        if part["figure"]:
            caption = escape_markdown(part["figure"]["caption"], 400)
            lines += [f"![{caption}]({raster(part['figure'])})", escape_markdown(part["figure"]["reading"], 900)]
        else:
            lines += [
                f"Not run: `{part['made_by']}`" if part["made_by"] else "On the page (index.html): it has photographs."
            ]
    lines += [markdown(tables["claims"]).strip(), "## Studies"]
    lines += ["\n".join(f"- {escape_markdown(f'{folder}: {title}')}" for folder, title in context["sources"].items())]
    return "\n\n".join(lines) + "\n"
