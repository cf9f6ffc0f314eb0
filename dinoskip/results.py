"""Result rows: one measured number with everything that says what was measured; as JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dinoskip.errors import DataError
from dinoskip.files import read_json, verify_beside_manifest, write_json
from dinoskip.tasks import is_error

_BASELINE = "baseline: "
UNKNOWN_EPOCH = -1
"""The epoch of weights from elsewhere that do not say it, and of baselines. Epoch 0 is an untrained network."""
OF_A_NETWORK = ("heldout", "token_cosine", "complete", "degenerate", "ambiguous")
"""Fields that say something of a network's features, or of what was fitted to them; baselines have few of them."""
_WHERE_THEY_APPLY = (*OF_A_NETWORK, "left_out", "no_interval")  # not in rows.json where they do not
ON_VALIDATION = "best on validation"
"""The note of a row of the trial that is best on the images shown."""
FIXED, HELD_OUT, CROSS_FITTED, SHOWN = "fixed", "held out", "cross-fitted", "shown"
SELECTIONS = (FIXED, HELD_OUT, CROSS_FITTED, SHOWN)
"""How what a number is of may have been chosen, a later one weighing more than those before it: nothing was, on images
that were held out, on other halves of the images shown, on the images shown themselves."""

_USUAL = (("selected", FIXED), ("precision", "fp32"))  # not in rows.json either


@dataclass(frozen=True)
class EvalResult:
    """One number. ``block`` is 1..depth, or several joined by + for multiscale (``"3+6+9+12"``).

    ``value`` is in percent for mIoU, accuracy and CorLoc (0..100). ``note`` marks what must not be mistaken,
    such as ``"best on validation"``. ``low`` and ``high`` are the ends of the 95 % interval, in the unit of ``value``:
    of images like these (:func:`dinoskip.statistics.explained_interval`), of a classifier's accuracy Wilson's; None
    where there is none: ``no_interval`` then says why, if that is not plain (too few images for so many classes).
    ``deviation`` is the standard deviation of a mean over several seeds (n - 1 in the
    denominator), in the same unit; None for a single fit.

    ``heldout`` is what a probe's head scores on the training images that were held out, in percent, so that a block can
    be chosen without the images that are reported (:func:`best_by_heldout`). ``token_cosine`` is the mean cosine
    between the tokens of an image, 1 where all are alike. ``complete`` is the share (0..1) of TokenCut's graphs that
    join every token to every other, ``degenerate`` of the images that have no cut, complete ones included: the graph
    has no single second eigenvector, the image has no box and is a miss. ``ambiguous`` is the share of the images whose
    cut has another seed, as good as the one taken, that may give another box. Baselines that cut pixels have these
    shares, too. ``left_out`` is the number of images (videos, pairs) of the split that are broken and not among the
    ``n``. None where they do not apply.

    ``selected``, one of :data:`SELECTIONS`, says how the trial (a learning rate, an input, a threshold) was chosen that
    the row is of; which of several blocks is read is chosen later (:mod:`dinoskip.decisions`). :data:`FIXED` also of
    rows that were written without it, unless they are noted as :data:`ON_VALIDATION`.

    ``kernels`` are those that the processor chose for products and eigenvectors (:func:`dinoskip.arithmetic.kernels`),
    "" where it is not known. Rows that differ in it alone are equal. ``precision`` is that of the frozen network's
    passes: fp32 (also of rows that do not say), tf32 or bf16.
    """

    metric: str
    value: float
    task: str  # probe | tokencut | knn | retrieve | classify
    block: str
    dataset: str
    split: str
    n: int
    model: str = ""
    initialisation: str = ""
    optimizer: str = ""
    depth: int = 0
    epoch: int = UNKNOWN_EPOCH
    facet: str = ""
    norm: str = ""
    protocol: str = ""
    resolution: str = ""
    classes: int = 0
    seed: int = 0
    weights: str = ""
    version: str = ""
    note: str = ""
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    heldout: float | None = None
    token_cosine: float | None = None
    complete: float | None = None
    degenerate: float | None = None
    ambiguous: float | None = None
    left_out: int | None = None
    no_interval: str = ""
    selected: str = FIXED
    precision: str = "fp32"
    kernels: str = field(default="", compare=False)

    @property
    def is_baseline(self) -> bool:
        """Whether the row is of a rule without a network (:meth:`baseline`), not of a model."""
        return self.model.startswith(_BASELINE)

    @property
    def rule(self) -> str:
        """Name of a baseline's rule: ``majority class``."""
        return self.model.removeprefix(_BASELINE)

    @property
    def is_of_a_seed(self) -> bool:
        """Whether the row is of one of several seeds, whose mean has a row of its own; its note ends in ``seed N``."""
        return self.note.rpartition(", ")[2].startswith("seed ")

    @property
    def shown(self) -> str:
        """``"41.7"``, or ``"41.7 ± 0.3"`` for a mean over seeds; errors as ``"0.449"``."""
        return f"{self.value:{self.digits}}" + ("" if self.deviation is None else f" ± {self.deviation:{self.digits}}")

    @property
    def interval(self) -> str:
        """``"40.1-43.9"``, or why there is no interval, if that is said."""
        if self.low is None or self.high is None:
            return self.no_interval
        return f"{self.low:{self.digits}}-{self.high:{self.digits}}"

    @property
    def ranking_value(self) -> float:
        """The value, or its negative for errors: of two rows the better one has more."""
        return -self.value if is_error(self.metric) else self.value

    @property
    def digits(self) -> str:
        """The format of its value: one digit after the point, three for errors."""
        return ".3f" if is_error(self.metric) else ".1f"

    def plain(self) -> dict[str, Any]:
        """JSON-able fields; a number that is not finite (nothing to average) is None."""
        entry = asdict(self)
        for name, value in entry.items():
            if isinstance(value, float) and not math.isfinite(value):
                entry[name] = None
        return entry

    def baseline(self, name: str, value: float, low: float | None = None, high: float | None = None) -> EvalResult:
        """Return the row of the rule ``name`` on the same images: no model, block, facet or weights.

        It is the same whichever model's row it is made from, so that equal rows can be told.
        """
        empty = {"initialisation": "", "optimizer": "", "depth": 0, "block": "", "facet": "", "norm": ""}
        about: dict[str, Any] = {**empty, "resolution": "", "weights": "", "protocol": "", "note": ""}
        about |= {"epoch": UNKNOWN_EPOCH, "no_interval": "", **dict(_USUAL), **dict.fromkeys(OF_A_NETWORK)}
        model = f"{_BASELINE}{name}"
        return replace(self, model=model, value=value, low=low, high=high, deviation=None, **about)

    def with_context(self, context: Mapping[str, Any]) -> EvalResult:
        """Return a copy in which ``context`` (model, optimizer, epoch, ...) is filled in."""
        return replace(self, **context)


def write_rows(path: Path, rows: Iterable[EvalResult]) -> None:
    """Write rows as JSON, atomically; a NaN value (nothing to average) becomes null.

    Fields that do not apply are left out, ``selected`` where nothing was, and ``precision`` where it is float32.
    """
    write_json(path, [{k: v for k, v in row.plain().items() if not _is_left_out(k, v)} for row in rows])


def _is_left_out(name: str, value: object) -> bool:
    """Whether ``rows.json`` does without a field: files without it are read as this value."""
    return (value in {None, ""} and name in _WHERE_THEY_APPLY) or (name, value) in _USUAL


def read_rows(path: Path) -> list[EvalResult]:
    """Read rows; :class:`DataError` for unknown fields, or if they are not as the manifest beside them says."""
    problem = verify_beside_manifest(path)
    if problem is not None:
        raise DataError(problem, f"remove {path.parent}: the command that made it makes it again")
    names = {field.name for field in fields(EvalResult)}
    rows = []
    for entry in read_json(path):
        if not isinstance(entry, dict) or set(entry) - names:
            raise DataError(f"{path}: not result rows of this version")
        try:
            value = math.nan if entry["value"] is None else float(entry["value"])
            row = EvalResult(**{"selected": _selection_of_old(entry), **entry, "value": value})
            if row.selected not in SELECTIONS:
                raise ValueError(row.selected)
            rows.append(_with_interval(row))
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{path}: not result rows of this version") from None
    return rows


def _selection_of_old(entry: Mapping[str, Any]) -> str:
    """How the trial of a row was chosen that does not say it: such rows have said only that it was on validation."""
    return SHOWN if str(entry.get("note", "")).startswith(ON_VALIDATION) else FIXED


def rows_in(output: Path) -> list[EvalResult]:
    """Read the rows of an output, none if it has no ``rows.json``."""
    path = output / "rows.json"
    return read_rows(path) if path.is_file() else []


def _with_interval(row: EvalResult) -> EvalResult:
    """Add Wilson's interval to a classifier's accuracy, which training writes without; other rows stay as they are."""
    if row.task != "classify" or row.low is not None or row.n < 1 or not math.isfinite(row.value):
        return row
    from dinoskip.statistics import wilson  # numpy, scipy

    low, high = wilson(round(row.value / 100 * row.n), row.n)
    return replace(row, low=100 * low, high=100 * high)


def best_by_heldout(rows: Iterable[EvalResult]) -> EvalResult | None:
    """Return the row with the best ``heldout``, the first of equals; None if no row has one.

    Chosen so, a probe's block (and norm) is chosen without the images that its value is of.
    """
    candidates = [row for row in rows if row.heldout is not None]
    return max(candidates, key=lambda row: row.heldout or 0.0, default=None)


def combined(selections: Iterable[str]) -> str:
    """How a number was chosen of which several things were, each as said: the one that weighs most; FIXED of none."""
    return max(selections, key=SELECTIONS.index, default=FIXED)


def rows_csv(rows: Iterable[EvalResult], variants: Sequence[str] | None = None) -> str:
    """Every row with every field as CSV, ``variants`` (one a row) first if given.

    A number that is not finite is empty; text that a spreadsheet would run as a formula begins with a quote.
    """
    stream = io.StringIO()
    names = [field.name for field in fields(EvalResult)]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names if variants is None else ["variant", *names])
    for i, row in enumerate(rows):
        values = [row.plain()[name] for name in names]
        writer.writerow(map(formula_safe, values if variants is None else [variants[i], *values]))
    return stream.getvalue()


def formula_safe(value: object) -> object:
    """A CSV cell: text that a spreadsheet would run as a formula begins with a quote."""
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return "'" + value
    return value
