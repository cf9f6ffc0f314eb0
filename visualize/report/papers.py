"""Records of papers, whose printed tables ``report.compare`` puts our numbers in: the parts of ``dinoskip.papers``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.plugins import LAST, Table

if TYPE_CHECKING:
    from visualize.report.content import PrintedTable, Report


@dataclass(frozen=True)
class StudyNumbers:
    """A study's numbers to put into printed tables.

    ``report`` is what its page shows; ``labels`` are its variants' names without optimizer and seed, by variant;
    ``tokens`` are other numbers of its networks, by variant: mean ln κ of the tokens, ``in`` and ``out``.
    """

    report: Report
    labels: Mapping[str, str]
    tokens: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class PaperItem:
    """A table, figure or claim of a paper: the configurations that make it, or why nothing does.

    Args:
        name: as the paper has it, such as ``table 2, softmax``.
        about: what it shows.
        made_by: configurations below ``configs/``, or a command; empty if it is not made.
        why: why it is not made, or in what ours differs from it; "" if it is made as printed.
        table: its name in ``report.compare``; "" of what is no table of numbers.
        figure: file name, without suffix, of the figure of a study's report that shows it.
        numbers: heading of the table of a study's report that shows it; not one of a paper's printed tables.
    """

    name: str
    about: str
    made_by: tuple[str, ...] = ()
    why: str = ""
    table: str = ""
    figure: str = ""
    numbers: str = ""


@dataclass(frozen=True)
class Paper:
    """A paper with printed tables. Its module imports nothing heavy; the functions do.

    Args:
        tables: names of its tables, as ``report.compare`` knows them; no other paper has one of these.
        beside: of some of the tables and what a study measured, what the report page shows beside the study's own.
        contested: of one of the tables, a study (``dinoskip.pipeline.sections.StudyBase``) and its variants
            (``dinoskip.pipeline.variants.Variant``), a line for each set of networks that would stand in one cell.
        order: place among papers where their tables are listed, the smallest first.
        cells: of one of the tables, a study, its variants and its folder after a run: whether a number of that run
            stands in a cell, and what the cell is, for each cell that the study should fill or that has a number which
            is not one of the study's.
        by_depth: tables that put networks of several depths beside each other.
        title: the paper's.
        items: its tables, figures and claims, in its order.
    """

    tables: tuple[str, ...]
    beside: Callable[[Sequence[str], StudyNumbers], Sequence[PrintedTable]]
    contested: Callable[[str, Any, Sequence[Any]], Iterable[str]]
    order: int = LAST
    cells: Callable[[str, Any, Sequence[Any], Path], Iterable[tuple[bool, str]]] = lambda *_: ()
    by_depth: tuple[str, ...] = ()
    title: str = ""
    items: tuple[PaperItem, ...] = ()


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
