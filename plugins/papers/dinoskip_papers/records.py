"""The papers whose printed tables a report can be put beside, as records that import nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.settings.config import implementation
from dinoskip_papers import items
from dinoskip_papers.others import OTHERS
from dinoskip_papers.published import PUBLISHED
from visualize.report.papers import Paper, PaperItem, StudyNumbers

if TYPE_CHECKING:
    from visualize.report.content import PrintedTable


def _by_role(names: Sequence[str], measured: StudyNumbers) -> Sequence[PrintedTable]:
    from dinoskip_papers.beside import by_role  # numpy, scipy

    return by_role(names, measured)


def _by_label(names: Sequence[str], measured: StudyNumbers) -> Sequence[PrintedTable]:
    from dinoskip_papers.beside import by_label  # numpy, scipy

    return by_label(names, measured)


def _contested(name: str, study: Any, variants: Sequence[Any]) -> Iterable[str]:
    from dinoskip_papers.contested import contested  # the pipeline, whose settings import the records

    return contested(name, study, variants)


def _cells_by_role(name: str, study: Any, variants: Sequence[Any], folder: Path) -> Iterable[tuple[bool, str]]:
    found: Iterable[tuple[bool, str]] = implementation("dinoskip_papers.rehearsed:cells_by_role")(
        name, study, variants, folder
    )
    return found


def _cells_by_label(name: str, study: Any, variants: Sequence[Any], folder: Path) -> Iterable[tuple[bool, str]]:
    found: Iterable[tuple[bool, str]] = implementation("dinoskip_papers.rehearsed:cells_by_label")(
        name, study, variants, folder
    )
    return found


def _labelled(paper: str, order: int, title: str, listed: tuple[PaperItem, ...]) -> Paper:
    """The paper whose tables begin with its name."""
    tables = tuple(name for name in OTHERS if name.startswith(f"{paper}."))
    return Paper(tables, _by_label, _contested, order, _cells_by_label, title=title, items=listed)


_BY_DEPTH = tuple(
    name for name, table in PUBLISHED.items() if any(cell.depth for _, cells in table.rows for cell in cells)
)
CUTTING_THE_SKIP = Paper(
    tuple(PUBLISHED),
    _by_role,
    _contested,
    10,
    _cells_by_role,
    _BY_DEPTH,
    "Cutting the Skip: Training Residual-Free Transformers",
    items.CUTTING_THE_SKIP,
)
GRAYING = _labelled("graying", 20, "Always Skip Attention", items.GRAYING)
CONDITIONED = _labelled("conditioned", 30, "Conditioned Initialization for Attention", items.CONDITIONED)
QUANTISATION = _labelled(
    "quantisation", 40, "The Quantization Benefits of Residual-Free Transformers", items.QUANTISATION
)
RECORDS: Mapping[str, Paper] = {
    "cutting_the_skip": CUTTING_THE_SKIP,
    "graying": GRAYING,
    "conditioned": CONDITIONED,
    "quantisation": QUANTISATION,
}
"""All four, by the name that ``dinoskip paper`` knows."""
