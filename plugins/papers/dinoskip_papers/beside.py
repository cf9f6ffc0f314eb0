"""Published tables with a study's numbers in them, as the report page shows them, and the claims of the paper."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

from dinoskip.results.rows import EvalResult
from dinoskip_papers.cells import OurNumber, OwnDifferences
from dinoskip_papers.claims import claims, claims_grid
from dinoskip_papers.compare import ComparedStudy, compared
from dinoskip_papers.labelled import beside, digits_of
from dinoskip_papers.published import published
from visualize.comparison import Scores
from visualize.report.content import PrintedTable, Report
from visualize.report.papers import StudyNumbers
from visualize.rows import StudyVariant, families, principal
from visualize.tables import as_csv

_EPOCH = operator.attrgetter("epoch")
CLAIMS, BY_ROLE, BY_LABEL = 0, 1, 2
"""Places of tables on the page: claims, tables of "Cutting the Skip", tables of the other papers."""


def compared_study(report: Report) -> ComparedStudy:
    """Return the parts of a report that are compared with published tables."""
    return ComparedStudy(report.variants, report.datasets, report.epochs, report.trained_on, report.records)


def by_role(names: Sequence[str], measured: StudyNumbers) -> list[PrintedTable]:
    """The claims of "Cutting the Skip", and those of its tables that are named; networks stand there by their role."""
    report = measured.report
    study, scores = compared_study(report), Scores(principal(report.rows), report.records)
    grid = claims_grid(claims(study, scores, report.roughness, report.block))
    tables = [compared(published(name), study, report.baselines) for name in names]
    return [
        PrintedTable(grid, as_csv(grid.columns, grid.rows), CLAIMS),
        *(PrintedTable(table.grid, table.csv, BY_ROLE) for table in tables),
    ]


def by_label(names: Sequence[str], measured: StudyNumbers) -> list[PrintedTable]:
    """Tables of other papers, each line with all seeds of the network of its label."""
    report, labelled = measured.report, labelled_networks(measured)
    own = OwnDifferences(report.rows, report.records)
    tables = [beside(name, labelled, own) for name in names]
    return [PrintedTable(table.grid, table.csv, BY_LABEL) for table in tables]


def labelled_networks(measured: StudyNumbers) -> dict[str, dict[str, dict[str, OurNumber]]]:
    """Return the measurements of every network, by its label, its name and a measure's key."""
    labelled: dict[str, dict[str, dict[str, OurNumber]]] = {}
    for name, seeds in families(measured.report.variants).items():
        label = measured.labels[seeds[0].name]
        labelled.setdefault(label, {})[name] = _measured(name, seeds, measured.tokens)
    return labelled


def _measured(
    network: str, seeds: Sequence[StudyVariant], tokens: Mapping[str, Mapping[str, float]]
) -> dict[str, OurNumber]:
    """Accuracies of the last epoch, alone and with their data set's name, and ln κ of the tokens, over all seeds."""
    accuracies: dict[str, dict[str, EvalResult]] = {}
    conditions: dict[str, list[float]] = {}
    for run in seeds:
        for row in sorted(run.rows, key=_EPOCH):
            if row.task == "classify" and row.metric in ("top1", "top5") and not row.note and math.isfinite(row.value):
                for key in (row.metric, f"{row.metric} {row.dataset}"):
                    accuracies.setdefault(key, {})[run.name] = row
        for key, value in tokens.get(run.name, {}).items():
            conditions.setdefault(f"ln κ {key}", []).append(value)
    found = {
        key: OurNumber(network, tuple(row.value for row in rows.values()), tuple(rows.values()), len(seeds))
        for key, rows in accuracies.items()
    }
    return found | {
        key: OurNumber(network, tuple(values), trained=len(seeds), digits=digits_of(key))
        for key, values in conditions.items()
    }
