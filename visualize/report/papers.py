"""Records of papers, whose printed tables ``report.compare`` puts our numbers in: the parts of ``dinoskip.papers``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dinoskip.plugins import LAST, Table

if TYPE_CHECKING:
    from visualize.report.content import PrintedTable, Report


@dataclass(frozen=True)
class StudyNumbers:
    """What a study has to put into printed tables.

    ``report`` is what its page shows; ``labels`` are its variants' names without optimizer and seed, by variant;
    ``tokens`` are other numbers of its networks, by variant: mean ln κ of the tokens, ``in`` and ``out``.
    """

    report: Report
    labels: Mapping[str, str]
    tokens: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Paper:
    """A paper with printed tables. Its module imports nothing heavy; the functions do.

    Args:
        tables: names of its tables, as ``report.compare`` knows them; no other paper has one of these.
        beside: of some of the tables and what a study measured, what the report page shows beside the study's own.
        contested: of one of the tables, a study (``dinoskip.pipeline.sections.StudyBase``) and its variants
            (``dinoskip.pipeline.variants.Variant``), a line for each set of networks that would stand in one cell.
        order: place among papers where their tables are listed, the smallest first.
    """

    tables: tuple[str, ...]
    beside: Callable[[Sequence[str], StudyNumbers], Sequence[PrintedTable]]
    contested: Callable[[str, Any, Sequence[Any]], Iterable[str]]
    order: int = LAST


PAPERS: Mapping[str, Paper] = Table("papers", {}, Paper)
"""The record of every paper, by the name of its part."""


def table_names() -> tuple[str, ...]:
    """Names of all printed tables."""
    return tuple(name for paper in PAPERS.values() for name in paper.tables)


def paper_of(table: str) -> Paper:
    """The paper that has a table of :func:`table_names`."""
    return next(paper for paper in PAPERS.values() if table in paper.tables)


def printed_tables(asked: Sequence[str], measured: StudyNumbers) -> list[PrintedTable]:
    """The tables that are ``asked`` for with a study's numbers in them, and claims, in the order of the page."""
    found = [
        table
        for paper in PAPERS.values()
        if (names := [name for name in asked if name in paper.tables])
        for table in paper.beside(names, measured)
    ]
    places = {name.replace(".", "-"): place for place, name in enumerate(asked)}
    return sorted(found, key=lambda table: (table.place, places.get(table.grid.name, -1)))
