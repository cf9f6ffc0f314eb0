"""Results of an analysis as they are written: ``analysis.json`` of the stage, ``inside.json`` of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dinoskip.io.files import read_json

RESULT = "analysis.json"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class QuantisedScore:
    """The score of a network by a measure, in percent, its weights and activations of the bits that a label says."""

    name: str
    quantised: str
    measure: str
    percent: float | None


@dataclass(frozen=True)
class CkaPair:
    """CKA of the blocks of two networks, a row for each block of the left one; None where it is not finite."""

    left: str
    right: str
    matrix: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Inside:
    """Measurements inside networks on photographs.

    ``inside`` are ``rows`` and ``histograms`` (:meth:`dinoskip.diagnostics.BlockAnalysis.as_json`) and ``sqnr`` is in
    dB by site and bits, of each network; ``cka`` is of all pairs.
    """

    inside: Mapping[str, Mapping[str, Any]]
    sqnr: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    cka: Sequence[CkaPair]


@dataclass(frozen=True)
class Analysis:
    """Results of the stage, by network.

    They are the weights, the measurements inside, a block's spectrum, signal propagation, and scores. Rows are those of
    :func:`dinoskip.init.report`, :class:`dinoskip.diagnostics.SignalRow`, :class:`QuantisedScore` and
    :class:`dinoskip.diagnostics.label_free.LabelFreeRow`; the last two are None where they were not asked for.
    """

    fresh: Mapping[str, Rows]
    trained: Mapping[str, Rows]
    photographs: Inside
    spectrum: Mapping[str, Sequence[float]]
    signal: Rows
    quantised: Rows | None = None
    label_free: Mapping[str, Rows] | None = None

    @classmethod
    def read(cls, out: Path) -> Analysis:
        """The analysis in the output of the stage."""
        stored = read_json(out / RESULT)
        photographs = stored.pop("photographs")
        pairs = [CkaPair(**pair) for pair in photographs.pop("cka")]
        return cls(**stored, photographs=Inside(**photographs, cka=pairs))

    def plain(self) -> dict[str, Any]:
        """Return the contents of ``analysis.json``, without the parts that were not asked for."""
        return {name: value for name, value in asdict(self).items() if value is not None}
