"""The page of a paper whose tables go by label, item by item of its record, and the page that lists the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dinoskip.io.files import read_text, write_text
from dinoskip.pipeline.rehearsal.filled import is_number, printed_lines
from dinoskip_papers.beside import labelled_networks
from dinoskip_papers.cells import OurNumber, OwnDifferences
from dinoskip_papers.labelled import beside
from dinoskip_papers.layout import ComparedTable
from dinoskip_papers.others import OTHERS
from dinoskip_papers.records import RECORDS
from visualize.pages import render_page
from visualize.report import sections
from visualize.report.content import Preview
from visualize.report.page import copied
from visualize.report.papers import Paper, PaperItem, StudyNumbers
from visualize.tables import DataTable, escape_markdown, latex, markdown, markdown_rows

TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("base.css", "report.css")


@dataclass(frozen=True)
class FoundStudy:
    """A study: its folder, its name and note by its settings, what it measured, and the tables it is put beside."""

    folder: Path
    name: str
    numbers: StudyNumbers
    compare: tuple[str, ...]
    note: str = ""

    @property
    def cautions(self) -> list[str]:
        """The note that its page has, and what else its networks differ in."""
        note = [f"{self.name}: {self.note}"] if self.note else []
        return [*note, *self.numbers.report.confounds]

    def made(self, item: PaperItem) -> bool:
        """Whether one of an item's configurations is this study's, by its name or its folder's."""
        stems = {Path(config).stem for config in item.made_by}
        return bool(stems & {self.name, self.folder.name})

    def printed(self, heading: str) -> dict[str, Any] | None:
        """A table of its page, as the template needs it; None if it has none of that heading."""
        page = self.folder / "report" / "report.md"
        lines = printed_lines(read_text(page), heading) if heading and page.is_file() else []
        if not lines:
            return None
        rows = [[float(cell) if is_number(cell) else cell for cell in line.values()] for line in lines]
        return sections.plain(DataTable(heading, list(lines[0]), rows))

    def figure(self, name: str) -> Path | None:
        """A figure of its page."""
        files = (self.folder / "report" / "img" / f"{name}{ending}" for ending in (".png", ".svg"))
        return next((path for path in files if name and path.is_file()), None)


def table_of(name: str, studies: Sequence[FoundStudy]) -> tuple[ComparedTable, list[FoundStudy]]:
    """A table with the numbers of every study that is put beside it, and the studies that it is from.

    A cell that several have is the one's that fills most of the table; the others are named.
    """
    keys, table = [key for _, key in OTHERS[name].measures], OTHERS[name]
    asked = [(study, labelled_networks(study.numbers)) for study in studies if name in study.compare]

    def count(labelled: Mapping[str, Mapping[str, Mapping[str, OurNumber]]]) -> int:
        return sum(key in own for label in table.rows for own in labelled.get(label, {}).values() for key in keys)

    labelled: dict[str, dict[str, dict[str, OurNumber]]] = {}
    rows: dict[str, list[Any]] = {}
    records: dict[Any, Any] = {}
    used = []
    for study, own in sorted(asked, key=lambda one: -count(one[1])):
        taken = 0
        for label, networks in own.items():
            there = {key for numbers in labelled.get(label, {}).values() for key in numbers}
            for network, numbers in networks.items():
                new = {key: number for key, number in numbers.items() if key not in there}
                taken += sum(key in new for key in keys) if label in table.rows else 0
                labelled.setdefault(label, {}).setdefault(network, {}).update(new)
        report = study.numbers.report
        for variant, more in report.rows.items():
            rows.setdefault(variant, []).extend(more)
        records |= report.records
        used += [study] if taken else []
    found = beside(name, labelled, OwnDifferences(rows, records))
    left = [str(study.folder) for study, own in asked if study not in used and count(own)]
    notes = [*([f"From {', '.join(str(study.folder) for study in used)}."] if used else []),
             *([f"Also in {', '.join(left)}."] if left else [])]  # fmt: skip
    return replace(found, notes=[*found.notes, *notes]), used


def build_other(paper: Paper, studies: Sequence[FoundStudy], out: Path) -> dict[str, tuple[int, int]]:
    """Write a paper's page into ``out``; return of every table how many cells have a number of ours, and all."""
    for folder in ("img", "tables"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    counts: dict[str, tuple[int, int]] = {}
    parts, lines, of_paper = [], [], list[FoundStudy]()
    for number, item in enumerate(paper.items):
        part = {**_plain(item), "name": f"item-{number}", "key": item.name}
        found = [study for study in studies if study.made(item)]
        if item.table:
            table, found = table_of(item.table, studies)
            have, every = counts[item.table] = table.filled
            part |= {"grid": sections.grid(table.grid), "there": f"{have} of {every} cells"}
            part |= {"made_by": ""} if have == every else {}
            write_text(out / "tables" / f"{table.file}.csv", table.csv)
            write_text(out / "tables" / f"{table.file}.md", markdown(table.grid))
            write_text(out / "tables" / f"{table.file}.tex", latex(table.grid))
            lines.append(markdown(table.grid).strip())
        elif found:
            part |= {"there": "run", "made_by": ""}
        if picture := next((path for study in found if (path := study.figure(item.figure))), None):
            part |= {"picture": _copied(picture, item, out / "img", number)}
        of_paper += [study for study in found if study not in of_paper]
        part["numbers"] = next((one for study in found if (one := study.printed(item.numbers))), None)
        if found and not item.table:  # a table's notes name its studies
            part["found"] = ", ".join(str(study.folder) for study in found)
        parts.append(part)
    context = {
        "title": f"{paper.title}, item by item",
        "claims_said": f"{sum(part['there'] != 'not made' for part in parts)} of {len(parts)} items are made by "
        "configurations; what is not made has its reason",
        "claims": None,
        "parts": parts,
        "cautions": list(dict.fromkeys(line for study in of_paper for line in study.cautions)),
        "sources": {str(study.folder): study.name for study in of_paper},
    }
    render_page(out / "index.html", "paper.html", context, styles=STYLES, folder=TEMPLATES)
    rows = [[part["title"], part["there"], part["made_by"], part["why"]] for part in parts]
    head = "\n".join(markdown_rows(["", "here", "made by", "not made, or in what it differs"], rows, 4))
    write_text(out / "paper.md", "\n\n".join([f"# {escape_markdown(str(context['title']), 200)}", head, *lines]) + "\n")
    return counts


def _plain(item: PaperItem) -> dict[str, Any]:
    """Return the template's fields for an item without any study."""
    return {
        "short": item.name,
        "title": f"{item.name}: {item.about}",
        "there": "not run" if item.made_by else "not made",
        "grid": None,
        "figure": None,
        "picture": None,
        "numbers": None,
        "found": "",
        "why": reason(item),
        "made_by": commands(item),
    }


def commands(item: PaperItem) -> str:
    """Commands that make an item: its configurations' runs, or commands of their own."""
    return ", ".join(f"dinoskip run configs/{one}" if one.endswith(".yaml") else one for one in item.made_by)


def reason(item: PaperItem) -> str:
    """The note of an item as the beginning of a sentence; of one that is not made it is the reason."""
    why = item.why if item.made_by or not item.why else f"not made: {item.why}"
    return why[:1].upper() + why[1:]


def _copied(path: Path, item: PaperItem, folder: Path, number: int) -> dict[str, str]:
    """The picture beside the page, as the template needs it."""
    own = folder / str(number)
    own.mkdir()
    (picture,) = copied([], [Preview(path, item.about, item.about)], own)["previews"]
    return {**picture, "path": picture["path"].replace("img/", f"img/{number}/", 1)}


def write_index(filled: Mapping[str, Mapping[str, tuple[int, int]]], studies: Mapping[str, str], out: Path) -> None:
    """The page that lists the papers, how much of each is filled, and the studies that were found."""
    papers = [
        {
            "name": name,
            "title": RECORDS[name].title,
            "have": sum(have for have, _ in tables.values()),
            "every": sum(every for _, every in tables.values()),  # 0 where no printed number compares
            "items": len(RECORDS[name].items),
            "not_made": sum(not item.made_by for item in RECORDS[name].items),
        }
        for name, tables in filled.items()
    ]
    context = {"title": "Papers, with our numbers", "papers": papers, "studies": studies}
    render_page(out / "index.html", "papers.html", context, styles=STYLES, folder=TEMPLATES)
