"""The other papers' tables (:mod:`dinoskip_papers.others`) with our numbers, which are found by a network's label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dinoskip_papers.cells import Contested, OurNumber, Ours, OwnDifferences
from dinoskip_papers.compare import INTERVALS
from dinoskip_papers.layout import ComparedTable, TableCell, TableLine
from dinoskip_papers.others import OTHERS, OtherTable, reference_of

Networks = Mapping[str, Mapping[str, OurNumber]]
"""Measurements of every network, by its name and a measure's key."""


def beside(name: str, labelled: Mapping[str, Networks], own: OwnDifferences) -> ComparedTable:
    """One of :data:`OTHERS` with our numbers: ``labelled`` are the networks by their label in the table.

    Two networks of one label that were both measured stand in none of its cells, and the table names them. ``own``
    gives the difference of a line to the line of our network that it changes (:func:`reference_of`).
    """
    table = OTHERS[name]
    lines = []
    for label, printed in table.rows.items():
        reference = reference_of(label, table)
        cells = []
        for (_, key), paper in zip(table.measures, printed, strict=True):
            ours = _found(labelled.get(label, {}), key)
            apart = own.of(ours, _found(labelled.get(reference, {}), key))
            cells.append(TableCell(paper, ours, apart=apart, digits=digits_of(key)))
        lines.append(TableLine((label,), cells, f"ours − {reference}"))
    head = [[("variant", 1), *((heading, 1) for heading, _ in table.measures)]]
    return ComparedTable(name, table.title, head, 1, lines, _parts(table), notes=_notes(table, lines))


def digits_of(key: str) -> int:
    """Return the number of digits that are printed after the point of a measure."""
    return 2 if key.startswith("ln κ") else 1


def _found(networks: Networks, key: str) -> Ours:
    found = {name: measured[key] for name, measured in networks.items() if key in measured}
    return Contested(tuple(found)) if len(found) > 1 else next(iter(found.values()), None)


def _parts(table: OtherTable) -> frozenset[int]:
    """Numbers of lines that are compared with no other: each begins a part."""
    return frozenset(place for place, label in enumerate(table.rows) if place and not reference_of(label, table))


def _notes(table: OtherTable, lines: Sequence[TableLine]) -> list[str]:
    models = dict.fromkeys(
        row.model for line in lines for cell in line.cells if isinstance(cell.ours, OurNumber) for row in cell.ours.rows
    )
    none = "Ours: none of the studies that were found has these networks."
    ours = [f"Ours: variants {', '.join(models)}. {INTERVALS}" if models else none]
    return [*([table.note] if table.note else []), *ours]
