"""The papers whose printed tables a report can be put beside, as records that import nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dinoskip_papers.others import OTHERS
from dinoskip_papers.published import PUBLISHED
from visualize.report.papers import Paper, StudyNumbers

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


def _labelled(paper: str, order: int) -> Paper:
    """The paper whose tables begin with its name."""
    tables = tuple(name for name in OTHERS if name.startswith(f"{paper}."))
    return Paper(tables, _by_label, _contested, order)


CUTTING_THE_SKIP = Paper(tuple(PUBLISHED), _by_role, _contested, 10)
"""“Cutting the Skip: Training Residual-Free Transformers” (ICLR 2026)."""
GRAYING = _labelled("graying", 20)
"""“Always Skip Attention”."""
CONDITIONED = _labelled("conditioned", 30)
"""“Conditioned Initialization for Attention”."""
